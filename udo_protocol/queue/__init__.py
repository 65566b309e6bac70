"""The queue server: frames, slots, lanes, and the connection to it."""

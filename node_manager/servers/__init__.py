"""The queue and the state server: found, started, watched, replaced; their users."""

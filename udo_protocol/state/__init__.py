"""The state server: checkpoints and their changelog, dead letters, and reads of what nobody vouches for."""

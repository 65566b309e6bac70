"""The state server: checkpoints, followers, dead letters, and reads of what nobody vouches for."""

"""Keyed state: groups and sessions in memory, and how they are stored on the state server."""

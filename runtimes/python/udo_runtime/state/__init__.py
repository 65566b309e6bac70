"""Keyed state: groups and sessions in memory, and their form on the state server."""

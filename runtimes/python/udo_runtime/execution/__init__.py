"""Runs the author's code: one batch, or event by event; what it raises becomes a failure."""

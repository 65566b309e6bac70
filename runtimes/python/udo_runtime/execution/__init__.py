"""Runs the author's code on a batch or event by event; its exceptions become failures."""

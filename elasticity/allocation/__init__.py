"""Checkpoint allocation and the moves it makes cheap (checkpoint-assisted migration, sections 5 and 6): docs/allocation.md.

A placement is an integer array, key groups × copies: the node of each checkpoint.
"""

"""Attempts over two slots while a key group moves from one to the other, new slot: the behaviour of their producers."""

"""Attempts over two slots while a key group moves from the one to the other, which is new: what their producers do."""

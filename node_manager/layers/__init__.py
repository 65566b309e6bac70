"""Unpacking of image layers, in a process of its own: what is in them is not trusted."""

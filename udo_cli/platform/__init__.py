"""The registry and the nodes as commands reach, start and stop them."""

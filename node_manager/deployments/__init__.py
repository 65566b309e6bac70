"""The deployments of this node: the table and its file, updates, canaries, lanes, adoption after a restart."""

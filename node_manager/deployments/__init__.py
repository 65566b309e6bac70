"""What is deployed on this node: the table and its file, updates, canaries, lanes, what a former manager left."""

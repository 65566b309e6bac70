"""The registry: OCI blobs, operator catalogue, deployments, live updates, nodes, audit. Nodes pull; it never calls out."""

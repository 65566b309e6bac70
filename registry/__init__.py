"""The registry: OCI blobs, operator catalogue, deployments, live updates, nodes, audit. Nodes pull; only the console calls nodes."""

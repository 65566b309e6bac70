"""The rules: versions, deployments, updates, nodes, the audit trail."""

"""The node manager's gRPC API, for all of its callers."""

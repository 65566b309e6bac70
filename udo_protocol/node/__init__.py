"""The node manager's gRPC API, for everyone who calls it."""

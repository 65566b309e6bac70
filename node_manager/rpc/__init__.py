"""The gRPC service and the metrics page: requests in, messages out, no decisions."""

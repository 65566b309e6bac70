"""The registry's HTTP API, for all of its callers."""

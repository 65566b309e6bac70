"""The registry's HTTP API, for everyone who calls it."""

"""Sessions on the state server: reads, writes and follows them. The state itself, without servers, is in udo_runtime.state."""

"""What the state server has of the sessions: read, written, followed. The state itself, without servers, is in udo_runtime.state."""

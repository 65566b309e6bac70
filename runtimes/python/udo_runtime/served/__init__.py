"""A Python operator as a process of its own: the other end of udo_runtime.child. In other languages that end is the SDK."""

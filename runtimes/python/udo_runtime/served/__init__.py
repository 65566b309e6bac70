"""A Python operator as a process of its own: the other end of udo_runtime.child, which is the SDK in other languages."""

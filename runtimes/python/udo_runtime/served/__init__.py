"""A Python operator as a process of its own: the other end of udo_runtime.child, as an SDK in any language has it."""

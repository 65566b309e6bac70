"""A slot's life: its owner, recovery from deaths and hangs, updates."""

"""A slot's life: its owner, what follows a death or a hang, updates."""

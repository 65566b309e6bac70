"""The state server: checkpoints and their changelog, savepoints, dead letters, and checked reads of keys that an operator may write."""

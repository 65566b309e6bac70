"""The database, and who is woken by a commit."""

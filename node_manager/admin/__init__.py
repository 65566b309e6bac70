"""What people look at and change: sessions, dead letters, logs, recordings."""

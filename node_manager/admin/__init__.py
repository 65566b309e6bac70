"""Administration of a node: sessions, dead letters, logs, recordings."""

"""Administration, by people: sessions, dead letters, logs, recordings."""

"""The database, and the notification of waiting requests after a commit."""

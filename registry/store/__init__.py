"""The database, the blobs, and the notification of waiting requests after a commit."""

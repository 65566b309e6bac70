"""One module per `udo` command; each is imported only when it runs and exposes `command`."""

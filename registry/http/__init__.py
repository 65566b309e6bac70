"""HTTP: routes and errors. No rule lives here."""

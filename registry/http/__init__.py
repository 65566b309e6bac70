"""HTTP: routes, errors and the server around them. No rule lives here."""

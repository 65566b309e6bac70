"""The console: pages for a browser, made on the server. They show what the API shows, and start updates as it does."""

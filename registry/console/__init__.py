"""The console: pages for a browser, rendered by the server. They show the API's data, and start updates as it does."""

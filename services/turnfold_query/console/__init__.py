"""The console: pages for people, read from the HTTP API with the visitor's token."""

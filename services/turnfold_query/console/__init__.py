"""The console: pages for people, which ask the HTTP API with the token of whoever looks."""

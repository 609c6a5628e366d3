"""Authentication and roles: bus credentials, HTTP tokens, and the files that hold them."""

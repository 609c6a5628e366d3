"""Addresses of PostgreSQL servers, and connections to servers that are gone."""

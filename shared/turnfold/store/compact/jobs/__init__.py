"""Compactions as durable jobs: claim, load the input, commit or fail. Start with `store`."""

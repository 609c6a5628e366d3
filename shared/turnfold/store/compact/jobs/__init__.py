"""Compactions as durable jobs: `claim`, `load` their input, `commit` or fail. Start with `store`."""

"""Inputs that nobody would write, for every part that reads what comes from outside: `make fuzz`."""

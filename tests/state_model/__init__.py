"""A state model of the store, for the state machine in the tests; no product code imports it."""

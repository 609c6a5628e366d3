"""The loops of a worker, one module each. `polling` holds their base class."""

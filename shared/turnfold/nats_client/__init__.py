"""The project's NATS client, and the rules for acknowledgements of published events."""

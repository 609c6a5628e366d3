"""Write a summary without a model: significant lines of the messages. Start with `extract`."""

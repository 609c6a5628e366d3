"""Write a summary without a model: telling lines of the messages. Start with `extract`."""

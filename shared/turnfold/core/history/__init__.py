"""The structure of a message list: blocks, pairs, priorities, states and validity."""

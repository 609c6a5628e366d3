"""The proof of the window: a million of them, of generated and of recorded sessions, each checked against the laws."""

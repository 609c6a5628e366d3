"""Processor time over doubled sizes: generated inputs for every part that works on what comes from outside."""

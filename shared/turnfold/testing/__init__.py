"""Small honest doubles of what the operations need from outside; no production code imports them."""

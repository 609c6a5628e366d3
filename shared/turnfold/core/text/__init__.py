"""Count tokens, cut texts, split them into words, and defuse markup in them."""

"""SQL that runs when events arrive: store, pair, evict, index and erase."""

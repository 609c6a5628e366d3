"""The structure of a message list: blocks, call and result pairs, priorities, states and validity."""

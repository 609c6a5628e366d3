"""Who may do what: how a connection says who it is, the roles of the bus, the tokens of HTTP, and the files that hold them."""

"""nats-server and the services under one roof: what `turnfold up` runs."""

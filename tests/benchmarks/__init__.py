"""What things cost, as multiples of what the bus and the database cost with nothing on top."""

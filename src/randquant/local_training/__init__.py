"""What a client does in a round: its examples, its steps from the global model, many at once."""

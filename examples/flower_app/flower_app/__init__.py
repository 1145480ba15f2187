"""A Flower app whose clients send their updates as a few private bits per coordinate."""

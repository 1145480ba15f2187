"""A Flower app whose clients send their updates with a guarantee."""

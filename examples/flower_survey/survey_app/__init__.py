"""A Flower app that asks a table of its clients."""

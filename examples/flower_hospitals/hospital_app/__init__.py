"""A Flower app whose hospitals send their updates with a guarantee for every patient."""

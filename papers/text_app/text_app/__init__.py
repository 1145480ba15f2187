"""A Flower app that trains adapters of a model of text, with a guarantee for every role."""

"""Adapters to engines for federated learning."""

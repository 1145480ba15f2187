"""Secure sums: among clients, with a helper, and with proofs that codes are valid."""

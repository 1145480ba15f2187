"""Sums that nobody sees a part of: among clients, with a helper, and proofs of what is summed."""

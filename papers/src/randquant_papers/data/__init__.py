"""Data sets that only the papers' experiments use, and features of them."""

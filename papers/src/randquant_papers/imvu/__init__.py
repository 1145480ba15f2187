"""Guo, Chaudhuri, Stock and Rabbat 2023: the Interpolated MVU mechanism."""

"""Sums of many clients' codes: what a server under secure aggregation sees."""

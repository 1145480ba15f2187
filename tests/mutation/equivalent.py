"""Mechanical mutants that were looked at and that nobody can notice."""

EQUIVALENT_LINES: list[tuple[str, str, str, str]] = []
"""(file, line before, line after, why): stripped lines, as the runner prints them."""

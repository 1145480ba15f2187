"""Shared tools without domain terms: argument checks, rounding, files and pages."""

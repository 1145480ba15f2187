"""What every room uses and none is about: checks, rounding, files, pages."""

"""The error for a client's own files."""


class DamagedFile(ValueError):
    """A client's own file is damaged or invalid."""

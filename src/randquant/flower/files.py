"""What a client's own files may raise."""


class DamagedFile(ValueError):
    """A file of a client's own is not what it should be."""

"""Text that others wrote, in our logs, and files that are not what they should be."""

LOGGED = 500
"""Most characters of foreign text that are logged or kept."""

UNREADABLE = "Expected a reply of this protocol, got something else."
"""What is logged of an error that is not one of ours."""


def logged(text: object) -> str:
    """Foreign text as part of one log line, so that it cannot imitate a line of ours.

    Example:
        >>> logged("refused\\nrandquant: epsilon 0.1")
        'refused?randquant: epsilon 0.1'
    """
    return "".join(c if c.isprintable() else "?" for c in str(text)[:LOGGED])


class DamagedFile(ValueError):
    """A client's own file is damaged or invalid."""

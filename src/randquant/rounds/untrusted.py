"""Untrusted text in log lines, and the error of a damaged file."""

MAX_LOGGED_CHARACTERS = 500
"""Most characters of untrusted text in a log or a record. With twice as many a stranger fills logs
twice as fast; with half, the longest refusals that clients send would be cut."""

UNREADABLE = "Expected a reply of this protocol, got bytes that are not."
"""Logged in place of another library's error, whose text may quote a stranger's bytes."""


def logged(text: object) -> str:
    """Return untrusted text for one log line, so that it cannot imitate a line of its own.

    Example:
        >>> logged("refused\\nrandquant: epsilon 0.1")
        'refused?randquant: epsilon 0.1'
    """
    # Cut first: the text may have megabytes. Line ends and terminal codes are not printable:
    # neither can a stranger begin a line of the log, nor change what a terminal shows of it.
    return "".join(c if c.isprintable() else "?" for c in str(text)[:MAX_LOGGED_CHARACTERS])


class DamagedFile(ValueError):
    """A client's file is damaged or invalid."""

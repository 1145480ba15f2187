"""Selection of names by glob patterns, such as the parts of a model that are trained."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

Patterns = str | Iterable[str] | None
"""One pattern, several, or none."""


def checked(
    what: str, patterns: Patterns, names: Collection[str], kind: str = "names"
) -> tuple[str, ...]:
    """Check that each pattern matches at least one name; return the patterns.

    Args:
        what: the argument's name, for messages.
        patterns: as in `fnmatch`, with case.
        names: all existing names.
        kind: a plural noun for the names, for messages.

    Raises:
        TypeError: a pattern is not a text.
        ValueError: a pattern matches no name.

    Example:
        >>> checked("parts", "head.*", ["body.weight", "head.weight"])
        ('head.*',)
    """
    try:
        listed = (patterns,) if isinstance(patterns, str) else tuple(patterns or ())
    except TypeError:
        raise TypeError(f"Expected {what} as patterns of names, got {patterns!r}.") from None
    for pattern in listed:
        if not isinstance(pattern, str):
            raise TypeError(f"Expected {what} as patterns of names, got {pattern!r}.")
        if not any(matches(name, (pattern,)) for name in names):
            shown = ", ".join([*names][:6]) + (", …" if len(names) > 6 else "")
            raise ValueError(
                f"Expected {what} to match {kind}, got {pattern!r}, which matches none of "
                f"{shown or 'no names'}."
            )
    return listed


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)

"""Charts from a file: only drawings are accepted."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

TAGS = {"figure", "figcaption", "p", "ul", "li", "svg", "g", "path", "rect", "text", "title"}
DRAWING = {"class", "viewBox", "x", "y", "width", "height", "d"}
ATTRIBUTES = DRAWING | {"transform", "role", "aria-label", "aria-hidden", "data-run", "data-series"}


def checked(chart: str) -> str:
    """Return a chart as `randquant._internal.html.svg` draws it, or raise.

    Guarantees: the result is one balanced HTML figure without a link, a script, a style or anything
        else that could run, load or navigate.

    Raises:
        ValueError: it is anything else.

    Example:
        >>> checked('<figure><a href="https://example.org">here</a></figure>')
        Traceback (most recent call last):
        ...
        ValueError: Expected a figure that is a chart, got one with 'a': take it out.
    """
    if "<!" in chart or "<?" in chart:  # comments, entities and instructions
        raise ValueError("Expected a figure that is a chart, got one with a declaration in it.")
    try:
        root = ElementTree.fromstring(chart)
    except ElementTree.ParseError as error:
        raise ValueError(f"Expected a figure that is a chart, got damaged HTML: {error}.") from None
    if root.tag != "figure":
        raise ValueError(f"Expected a figure that is a chart, got {root.tag!r}.")
    for element in root.iter():
        for name in [*{element.tag} - TAGS, *sorted(set(element.attrib) - ATTRIBUTES)]:
            raise ValueError(
                f"Expected a figure that is a chart, got one with {name!r}: take it out."
            )
    return chart

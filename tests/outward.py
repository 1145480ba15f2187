"""Places that print epsilons: an upper bound is rounded up, a lower bound down.

The planted error is rounding to nearest: each printer must then be caught.
"""

import re
from pathlib import Path

from randquant._internal import formatting

UPPER = 7531.0 + 2.0**-30
"""To nearest this is printed as 7531, which is below it. Nothing else on a page is near."""

LOWER = 2468.0 - 2.0**-30
"""To nearest this is printed as 2468, which is above it."""

NUMBER = re.compile(r"\d[\d,]*\.?\d*")
FORMATTED = re.compile(r"\{([^{}]*?):[,.]*\.?\d*[gfe]\}")
PARAMETERS = {"clip": 0.1, "levels": 2, "margin": 0.1}


def near(text: str, value: float) -> list[float]:
    """The numbers of a text that stand for a value."""
    found = [float(number.rstrip(".,").replace(",", "")) for number in NUMBER.findall(text)]
    return [number for number in found if abs(number - value) < 1.5]


def to_nearest(value: float, rounding: str, digits: int, grouped: bool) -> str:
    return f"{value:,.{digits}g}" if grouped else f"{value:.{digits}g}"


def check_outward(show, value: float, monkeypatch) -> None:
    """What is shown is at or beyond the bound, and is not where it is rounded to nearest."""
    within = (lambda found: min(found) >= UPPER) if value == UPPER else lambda f: max(f) <= LOWER
    found = near(show(), value)
    assert found
    assert within(found)
    monkeypatch.setattr(formatting, "_rounded", to_nearest)  # the planted error
    assert not within(near(show(), value))


def to_nearest_in(package) -> set[str]:
    """What is called an epsilon, or an end of its interval, and meets a plain format."""
    found = set()
    for path in Path(package.__file__).parent.rglob("*.py"):
        found |= {match[1] for match in FORMATTED.finditer(path.read_text())}
    return {each for each in found if "epsilon" in each or each.endswith((".upper", ".lower"))}

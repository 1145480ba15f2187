"""What a reproduction holds, and how it is printed in a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from randquant import Interval
from randquant.privacy import round_up
from randquant.reports import Figure, text_table

Verdict = Literal["holds", "does not hold", "cannot be told"]

Scale = Literal["full", "quick"]

Value = Interval | float | int | str | None
"""A proven interval, a number, words, or nothing."""

WIDTH = 100
"""Characters of a line in the terminal."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that a paper says, beside what we find.

    Attributes:
        text: the claim, in our words.
        paper: the paper's number as it is printed there, or None where it gives none.
        ours: our number; an interval where it is proven.
        verdict: whether the claim holds.
        why: how the verdict follows, in a sentence or two.
    """

    text: str
    paper: str | None
    ours: Value
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True)
class Table:
    """Figures of ours, for a picture or a table of the paper.

    Attributes:
        title: what is tabulated, with units.
        columns: (k,) headings.
        rows: (k,) cells each.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Stated:
    """What a paper promises for a mechanism, beside what is proven for it.

    Attributes:
        what: the mechanism, or the curve that it draws.
        paper: the guarantee as it is printed in the paper, or None where it states none.
        certified: an upper bound for the whole run of one client, by our accountant; printed
            rounded up, and infinity where nothing finite can be promised.
        why: a sentence on unit, neighbours and delta, and on why the two differ.
    """

    what: str
    paper: str | None
    certified: Value
    why: str


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A table or figure of a paper, regenerated.

    Attributes:
        name: as on the command line.
        title: what is reproduced.
        source: the paper, and where in it.
        setting: the parameters, and what the paper leaves open.
        claims, tables: the results.
        figures: charts.
        command: what regenerates it; `randquant-papers reproduce NAME` where nothing else is given.
        stand_in: the data used in place of the paper's, such as "Fashion-MNIST in place of
            EMNIST"; empty where the data are the paper's own, or none are needed.
        scale: "full", or "quick" for fewer rounds or clients than in the paper: then nothing here
            is a verdict on the paper, and every rendering says so.
        guarantees: what the paper promises, beside what is proven.

    Raises:
        ValueError: the scale is neither "full" nor "quick".
    """

    name: str
    title: str
    source: str
    setting: str
    claims: Sequence[Claim]
    tables: Sequence[Table]
    figures: Sequence[Figure] = field(repr=False)
    command: str = ""
    stand_in: str = ""
    scale: Scale = "full"
    guarantees: Sequence[Stated] = ()

    def __post_init__(self) -> None:
        if self.scale not in ("full", "quick"):
            raise ValueError(f"Expected scale to be full or quick, got {self.scale!r}.")
        if not self.command:
            object.__setattr__(self, "command", f"randquant-papers reproduce {self.name}")


def labels(result: Reproduction) -> list[str]:
    """What a reader has to know before the numbers: other data, or a smaller experiment.

    Example:
        >>> labels(Reproduction("a", "", "", "", [], [], [], stand_in="digits in place of EMNIST"))
        ['Stand-in data: digits in place of EMNIST']
    """
    texts = [f"Stand-in data: {result.stand_in}"] if result.stand_in else []
    if result.scale == "quick":
        texts.append("Quick run: smaller than in the paper, and no verdict on it")
    return texts


def shown(value: Value) -> str:
    """Print a value; a proven interval by its upper end, never below it.

    Example:
        >>> shown(Interval(1.23456781, 1.23456789)), shown(0.25), shown(None), shown(math.inf)
        ('1.234568', '0.25', '-', 'infinite')
    """
    if isinstance(value, Interval):
        return "infinite" if math.isinf(value.upper) else round_up(value.upper, 7)
    if isinstance(value, float):
        return "infinite" if math.isinf(value) else f"{value:.6g}"
    return "-" if value is None else str(value)


def shown_bound(value: Value) -> str:
    """Print an upper bound, never below it, whether it came as an interval or as a number.

    Example:
        >>> shown_bound(1.23456711), shown_bound(Interval(1.0, 2.5)), shown_bound(math.inf)
        ('1.234568', '2.5', 'infinite')
    """
    return shown(Interval(value, value) if isinstance(value, float) else value)


def agrees(paper: str, ours: float) -> bool:
    """Whether a printed number is ours, rounded or cut off at its last digit.

    Example:
        >>> agrees("5.46838", 5.4683825), agrees("1.993", 1.9973)
        (True, False)
    """
    decimals = len(paper.partition(".")[2])
    return abs(float(paper) - ours) < 10.0**-decimals


def as_text(result: Reproduction) -> list[str]:
    """Lay a reproduction out for a terminal."""
    lines = [result.title]
    for said in (*labels(result), f"{result.source}. {result.setting}"):
        lines += textwrap.wrap(said, WIDTH)
    claims = [(c.paper or "-", shown(c.ours), c.verdict, c.text, c.why) for c in result.claims]
    lines += ["", *_explained(("paper", "ours", "verdict", "claim"), claims)]
    if result.guarantees:
        stated = [
            (g.paper or "-", shown_bound(g.certified), g.what, g.why) for g in result.guarantees
        ]
        lines += ["", "Guarantees of one client's whole run, as stated and as certified"]
        lines += _explained(("paper", "certified", "of"), stated)
    for table in result.tables:
        lines += ["", *textwrap.wrap(table.title, WIDTH)]
        lines += text_table(table.columns, cells(table))
    return [*lines, "", f"command        {result.command}"]


def _explained(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table whose last column is prose, each with a sentence of explanation below."""
    head, *short = text_table(columns, [(*row[:-2], "") for row in rows])
    indent = len(head) - len(columns[-1])
    lines = [head]
    for start, (*_, said, why) in zip(short, rows, strict=True):
        first, *more = textwrap.wrap(said, max(30, WIDTH - indent)) or [""]
        lines += [start.ljust(indent) + first, *(" " * indent + line for line in more)]
        reasons = textwrap.wrap(why, max(30, WIDTH - indent - 2))
        lines += [" " * (indent + 2) + line for line in reasons]
    return lines


def cells(table: Table) -> list[list[str]]:
    """The rows of a table as they are printed."""
    return [[shown(cell) for cell in row] for row in table.rows]

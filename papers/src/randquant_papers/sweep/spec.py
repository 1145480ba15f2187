"""The description of a sweep, read from a TOML file and checked.

[train]          settings common to all runs, by name, and mechanism parameters
[grid]           lists; every combination of their values is run
[ranges]         instead of lists, ranges that are searched
[search]         trials = how many runs the search makes, seed = of its choices
[[case]]         alternatives, each with settings of its own, and
[case.grid]      lists of its own, or
[case.ranges]    ranges of its own
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from randquant_papers.configuration import USUAL, PaperConfig, check_settings, of_settings
from randquant_papers.sweep import names

REQUIRED = {"dataset", "model", "mechanism"}
Values = Annotated[tuple[Any, ...], Meta(min_length=1)]


class Range(Struct, frozen=True, forbid_unknown_fields=True):
    """The values that a search may choose for a setting: {low = A, high = B} or {choices = [A, B]}.

    Attributes:
        low, high: both ends are included; two whole numbers make a range of whole numbers.
        log: whether to search on a logarithmic scale.
        choices: instead of ends, values without an order.
    """

    low: int | float = math.nan
    high: int | float = math.nan
    log: bool = False
    choices: Values = ()


class Trials(Struct, frozen=True, forbid_unknown_fields=True):
    """How many runs a search makes, and the seed of its choices."""

    trials: Annotated[int, Meta(ge=1, le=100_000)]
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0


class SweepTables(Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of the file, as above."""

    train: dict[str, Any] = {}
    grid: dict[str, Any] = {}
    ranges: dict[str, Any] = {}
    search: Trials | None = None
    case: tuple[dict[str, Any], ...] = ({},)


@dataclass(frozen=True, slots=True)
class Case:
    """One alternative of a sweep: what each setting may be.

    Attributes:
        values: values to combine, by name of the setting; one for a setting that is fixed.
        ranges: ranges to search, by name of the setting.
        common: names of settings from the tables common to all cases.
    """

    values: Mapping[str, tuple[Any, ...]]
    ranges: Mapping[str, Range]
    common: Set[str]

    def config(self, chosen: Mapping[str, Any]) -> PaperConfig:
        """The configuration of the run with these values for the lists or ranges."""
        first = {name: values[0] for name, values in self.values.items()}
        return of_settings({**first, **chosen}, self.common)

    def possible(self) -> dict[str, tuple[Any, ...]]:
        """The values that each setting may have; a range is represented by its ends."""
        ends = {name: each.choices or (each.low, each.high) for name, each in self.ranges.items()}
        return {**self.values, **ends}


@dataclass(frozen=True, slots=True)
class Spec:
    """A sweep: a grid of runs, or a search for the best ones.

    Attributes:
        cases: the alternatives, at least one.
        trials: how many runs a search makes; None for a grid.
        seed: seed of the search.
    """

    cases: Sequence[Case]
    trials: int | None = None
    seed: int = 0

    def grid(self) -> Iterator[PaperConfig]:
        """Every combination of every case, without duplicates."""
        seen: set[str] = set()
        for case in self.cases:
            for values in itertools.product(*case.values.values()):
                config = case.config(dict(zip(case.values, values, strict=True)))
                if (name := names.folder(config)) not in seen:
                    seen.add(name)
                    yield config


def read(text: str) -> Spec:
    """Read a sweep from the text of its TOML file.

    Raises:
        ValueError: it is not TOML, a table or a setting is unknown, a value is of the wrong type,
            or there is nothing to combine or to search.

    Example:
        >>> spec = read('''
        ... [train]
        ... dataset = "digits"
        ... model = "softmax"
        ... mechanism = "rqm"
        ... clip = 0.03
        ... margin = 0.03
        ... levels = 16
        ... [grid]
        ... keep = [0.3, 0.42]
        ... seed = [0, 1]
        ... ''')
        >>> [(config.parameters["keep"], config.seed) for config in spec.grid()]
        [(0.3, 0), (0.3, 1), (0.42, 0), (0.42, 1)]
    """
    try:
        given = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"Expected a sweep as TOML: {error}.") from None
    if isinstance(given.get("case"), dict):
        raise ValueError("Expected alternatives as [[case]], got [case]: double the brackets.")
    tables: SweepTables = _checked("a sweep", SweepTables, given)
    search = tables.search
    tried = "ranges" if search else "grid"
    common = _case(tables.train, tables.grid, tables.ranges, tried)
    cases = [
        _merged(common, _case(own, own.pop("grid", {}), own.pop("ranges", {}), tried))
        for own in tables.case or ({},)
    ]
    _check(cases, searching=search is not None)
    return Spec(cases, search.trials, search.seed) if search else Spec(cases)


def _case(fixed: Mapping[str, Any], grid: Any, ranges: Any, tried: str) -> Case:
    """What one level of the file says; what is tried is in its `grid` or in its `ranges`."""
    lists = _checked("[case.grid]", dict[str, Any], grid)
    searched = _checked("[case.ranges]", dict[str, Any], ranges)
    if tried == "ranges" and lists:
        raise ValueError(
            f"Expected ranges to search, got a list of {min(lists)}: write it in [ranges] as "
            "{choices = [...]}."
        )
    if tried == "grid" and searched:
        raise ValueError(
            f"Expected lists in a grid, got a range of {min(searched)}: add [search] with trials "
            "to search it."
        )
    tables = {**lists, **searched}
    if twice := fixed.keys() & tables:
        raise ValueError(f"Expected {min(twice)} once, got a fixed value and others: leave one.")
    values = {name: (value,) for name, value in fixed.items()}
    values |= {name: _checked(name, Values, each) for name, each in lists.items()}
    return Case(
        values,
        {name: _range(name, each) for name, each in searched.items()},
        fixed.keys() | tables,
    )


def _merged(common: Case, own: Case) -> Case:
    """An alternative, whose own settings override the common ones."""
    values = {name: each for name, each in common.values.items() if name not in own.common}
    ranges = {name: each for name, each in common.ranges.items() if name not in own.common}
    return Case(
        {"threads": (1,), **values, **own.values},
        {**ranges, **own.ranges},
        common.common - own.common,
    )


def _range(name: str, given: Any) -> Range:
    called = f"the range of {name}"
    found: Range = _checked(called, Range, given)
    if not found.choices:
        if not (math.isfinite(found.low) and math.isfinite(found.high) and found.low <= found.high):
            raise ValueError(
                f"Expected low and high of {called}, finite numbers with low <= high, or choices; "
                f"got {given}."
            )
        if found.log and not (found.low > 0 and math.isfinite(math.log(found.low))):
            raise ValueError(f"Expected low > 0 for {called}, on a logarithm, got {found.low}.")
    return found


def _checked(name: str, kind: Any, given: Any) -> Any:
    """Return what a part of the file says, of the declared kind."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"Expected {name} as docs/sweeps.md describes it, got: {error}.") from None


def _check(cases: Sequence[Case], searching: bool) -> None:
    possible = [case.possible() for case in cases]
    for each in possible:
        for name in REQUIRED - each.keys():
            raise ValueError(f"Expected {name} in [train], got none: every run needs one.")
    everything = {mechanism for each in possible for mechanism in each["mechanism"]}
    for case, each in zip(cases, possible, strict=True):
        check_settings(each, case.common, everything)
    for name in ("delta", "neighboring", "unit"):
        if len({v for each in possible for v in each.get(name, [USUAL[name]])}) > 1:
            raise ValueError(
                f"Expected one {name} in a sweep, got several: epsilons at different ones cannot "
                "be compared."
            )
    if searching and "clipped-sgd" in everything:
        raise ValueError("Expected mechanisms that protect in a search, got clipped-sgd.")

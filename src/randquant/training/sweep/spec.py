"""The description of a sweep, read from a TOML file and checked.

[train]          settings common to all runs: TrainConfig's fields and mechanism parameters
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from randquant._internal import validate
from randquant.training import settings
from randquant.training.config import TrainConfig
from randquant.training.sweep import names

TABLES = ("train", "grid", "ranges", "search", "case")


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a search may choose for a setting.

    Attributes:
        low, high: both ends are included; two whole numbers make a range of whole numbers.
        log: whether to search on a logarithmic scale.
        choices: instead of ends, values without an order.
    """

    low: float = 0
    high: float = 0
    log: bool = False
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One alternative of a sweep: fixed settings, and lists or ranges of others.

    Attributes:
        fixed: settings by name, including those common to all runs.
        lists: values to combine, by name of the setting.
        ranges: ranges to search, by name of the setting.
        common: names of settings from the tables common to all cases.
    """

    fixed: Mapping[str, Any]
    lists: Mapping[str, list[Any]]
    ranges: Mapping[str, Range]
    common: frozenset[str]

    def config(self, chosen: Mapping[str, Any]) -> TrainConfig:
        """The configuration of the run with these values for the lists or ranges."""
        return names.config({**self.fixed, **chosen}, self.common)

    def possible(self) -> dict[str, list[Any]]:
        """The values that each setting may have; a range is represented by its ends."""
        ends = {name: list(r.choices) or [r.low, r.high] for name, r in self.ranges.items()}
        return {**{name: [value] for name, value in self.fixed.items()}, **self.lists, **ends}

    def mechanisms(self) -> list[Any]:
        """Every mechanism that the case may run."""
        return self.possible()["mechanism"]


@dataclass(frozen=True, slots=True)
class Spec:
    """A sweep: a grid of runs, or a search for the best ones.

    Attributes:
        cases: the alternatives, at least one.
        trials: how many runs a search makes; None for a grid.
        seed: seed of the search.
    """

    cases: tuple[Case, ...]
    trials: int | None = None
    seed: int = 0

    def grid(self) -> Iterator[TrainConfig]:
        """Every combination of every case, without duplicates."""
        seen: set[str] = set()
        for case in self.cases:
            for values in itertools.product(*case.lists.values()):
                config = case.config(dict(zip(case.lists, values, strict=True)))
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
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"Expected a sweep as TOML: {error}.") from None
    for name in tables:
        validate.choice("a table of a sweep", name, TABLES)
    for name in TABLES[:-1]:
        _table(f"[{name}]", tables.get(name, {}))
    alternatives = tables.get("case", [{}])
    if not isinstance(alternatives, list) or not alternatives:
        raise ValueError("Expected alternatives as [[case]], got [case]: double the brackets.")
    cases = tuple(_case(tables, _table("[[case]]", case)) for case in alternatives)
    spec = Spec(cases, *_search(tables))
    _check(spec)
    return spec


def _case(tables: Mapping[str, Any], own: Mapping[str, Any]) -> Case:
    fixed = {"threads": 1, **tables.get("train", {})}
    lists = {name: _list(name, values) for name, values in tables.get("grid", {}).items()}
    ranges = {name: _range(name, given) for name, given in tables.get("ranges", {}).items()}
    shared = frozenset([*fixed, *lists, *ranges])
    own_lists, own_ranges = own.get("grid", {}), own.get("ranges", {})
    own_fixed = {name: own[name] for name in own if name not in ("grid", "ranges")}
    taken = {*own_fixed, *_table("[case.grid]", own_lists), *_table("[case.ranges]", own_ranges)}
    # A case's own settings override the common ones.
    left = {name: value for name, value in fixed.items() if name not in taken}
    lists = {name: values for name, values in lists.items() if name not in taken}
    ranges = {name: given for name, given in ranges.items() if name not in taken}
    twice = set(left) & {*lists, *ranges} | set(own_fixed) & {*own_lists, *own_ranges}
    if twice - {"threads"}:
        raise ValueError(f"Expected {min(twice)} once, got a fixed value and others: leave one.")
    return Case(
        {**left, **own_fixed},
        {**lists, **{name: _list(name, values) for name, values in own_lists.items()}},
        {**ranges, **{name: _range(name, given) for name, given in own_ranges.items()}},
        shared - taken,
    )


def _search(tables: Mapping[str, Any]) -> tuple[int | None, int]:
    if "search" not in tables:
        return None, 0
    given = tables["search"]
    for name in given:
        validate.choice("a setting of [search]", name, ("trials", "seed"))
    if "trials" not in given:
        raise ValueError("Expected trials in [search], got none: set how many runs to make.")
    trials = validate.whole("trials", given["trials"], low=1, high=100_000)
    return trials, validate.whole("seed of [search]", given.get("seed", 0), low=0, high=2**32 - 1)


def _check(spec: Spec) -> None:
    searching = spec.trials is not None
    for case in spec.cases:
        names.require([*case.fixed, *case.lists, *case.ranges])
    everything = {mechanism for case in spec.cases for mechanism in case.mechanisms()}
    for case in spec.cases:
        if searching and case.lists:
            raise ValueError(
                f"Expected ranges to search, got a list of {next(iter(case.lists))}: write it in "
                "[ranges] as {choices = [...]}."
            )
        if not searching and case.ranges:
            raise ValueError(
                f"Expected lists in a grid, got a range of {next(iter(case.ranges))}: add "
                "[search] with trials to search it."
            )
        possible = case.possible()
        own = {name: values for name, values in possible.items() if name not in case.common}
        settings.check(own, case.mechanisms())
        settings.check({name: possible[name] for name in case.common}, everything)
    for setting in ("delta", "neighboring", "unit"):
        default = [settings.DEFAULTS[setting]]
        if len({v for case in spec.cases for v in case.possible().get(setting, default)}) > 1:
            raise ValueError(
                f"Expected one {setting} in a sweep, got several: epsilons at different ones "
                "cannot be compared."
            )
    if searching and "clipped-sgd" in everything:
        raise ValueError("Expected mechanisms that protect in a search, got clipped-sgd.")


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"Expected {name} to be a table, got {value!r}.")
    return value


def _list(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"Expected a list of values for {name} in a grid, got {values!r}.")
    return values


def _range(name: str, given: Any) -> Range:
    """Read {low = 1, high = 9, log = true} or {choices = [1, 5, 9]}."""
    form = "{low = A, high = B, log = true} or {choices = [A, B]}"
    if isinstance(given, dict) and set(given) == {"choices"}:
        return Range(choices=tuple(_list(name, given["choices"])))
    if not isinstance(given, dict) or not {"low", "high"} <= set(given) <= {"low", "high", "log"}:
        raise ValueError(f"Expected a range {form} for {name}, got {given!r}.")
    low, high, log = given["low"], given["high"], given.get("log", False)
    validate.real(f"low of {name}", low)
    validate.real(f"high of {name}", high, low=float(low))
    validate.kind(f"log of {name}", log, bool)
    if log and not (low > 0 and math.isfinite(math.log(low))):
        raise ValueError(f"Expected low > 0 for {name}, whose logarithm is searched, got {low}.")
    return Range(low, high, log)

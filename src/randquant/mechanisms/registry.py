"""Mechanisms by name: the record by which each joins every command, table and contract test."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.privacy.guarantee import LARGEST_COHORT, Neighboring, Trust

# How a mechanism is tuned: targets, and the families of parameters to search.
#
# There are two ways to tune a mechanism, and it may support both. For one coordinate, one or two
# numbers are searched for the least error at a target epsilon (`CoordinateFamily`). For a whole
# update, one number sets the noise level, and all other parameters are fixed (`UpdateFamily`;
# `docs/theory/plan.md` gives the choices and the reasons). A mechanism's record has both families;
# the searches are in `randquant.planning`.

AverageError = Literal["mae", "mse"]
"""Mean absolute or mean squared error, for an input that is uniform on [-clip, clip]."""

Point = dict[str, float]
"""A point of a search: numbers by name."""

Grid = Sequence[float] | np.ndarray

PROBABILITY_GRID = [0.0, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0]
"""A grid of probabilities."""

CLIP_RMS_UNITS = 4.0
"""Clipping threshold of a rotated coordinate, in units of clip_norm / sqrt(coordinates), its root
mean square: about one coordinate in 16,000 is clipped. At 8 the part of a sum's variance that does
not protect would be four times as large; at 2 one coordinate in 22 would be clipped, a bias that
does not average out over clients."""

CLOSE_CLIP_RMS_UNITS = 3.0
"""The threshold where clipping closer lowers the error of two levels: `docs/theory/plan.md`."""

MAX_CLOSE_CLIP_COHORT = 10_000
"""Largest cohort for which clipping closer is used. It lowers the error up to 17,000 clients; in
larger cohorts the bias, which does not average out, is larger than the variance that is saved."""


@dataclass(frozen=True, slots=True)
class CoordinateTarget:
    """The target for one coordinate.

    Attributes:
        clip: per-coordinate clipping threshold.
        levels: number of codes.
        epsilon: largest pure epsilon of one coordinate, in nats.
        objective: the error to minimise, `mae` or `mse`, input uniform on [-clip, clip].
    """

    clip: float
    levels: int
    epsilon: float
    objective: AverageError

    def __post_init__(self) -> None:
        validate.convert_numbers(self)

    def sized(self, **numbers: float) -> dict[str, Any]:
        """Return `clip`, `levels`, and these numbers rounded to six significant digits."""
        rounded = {name: six_digits(value) for name, value in numbers.items()}
        return {"clip": self.clip, "levels": self.levels, **rounded}

    def even_values(self, margin: float) -> list[float]:
        # The margin is in units of clip.
        return even_values(self.clip * (1 + margin), self.levels)


@dataclass(frozen=True, slots=True)
class CoordinateFamily:
    """The numbers to search for a target epsilon of one coordinate.

    Attributes:
        axes: from the target to the one or two numbers to search, by name, with a grid each. Along
            the last one, bisection finds where epsilon meets the target.
        parameters: from the target and a point to the mechanism's parameters.
    """

    axes: Callable[[CoordinateTarget], Mapping[str, Grid]]
    parameters: Callable[[CoordinateTarget, Point], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class UpdateSetting:
    """The setting in which a mechanism is to protect whole updates.

    Attributes:
        dimension: coordinates of an update, 1 to 2**30.
        cohort: clients in a round.
        bits: most bits of a code, 1 to 24; channels use at most 8.
        trust: `local` or `aggregate`.
        clip_norm: L2 clipping threshold of a whole update.
        neighboring: the neighbouring relation.
        coordinates: how many coordinates of a rotated update are sent; None for all.
        server_noise: whether the server adds noise as well as the helper, where the helper does.
        size: coordinates of a rotated update, the dimension padded to a power of two.
        sharing: clients that share the noise, those of a sum; otherwise one.
        part: norm of what is sent of an update over clip_norm, see `aggregation.rotation`.
        levels: most codes of a channel.
        clip: clipping threshold of a rotated coordinate, at most clip_norm.
        distance: largest L2 distance between two neighbouring updates.
    """

    dimension: int
    cohort: int
    bits: int
    trust: Literal["local", "aggregate"] = "local"
    clip_norm: float = 1.0
    neighboring: Neighboring = "replace_one"
    coordinates: int | None = None
    server_noise: bool = False

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.whole("dimension", self.dimension, low=1, high=2**30)
        validate.whole("cohort", self.cohort, low=1, high=LARGEST_COHORT)
        validate.whole("bits", self.bits, low=1, high=24)
        validate.choice("trust", self.trust, ("local", "aggregate"))
        validate.real("clip_norm", self.clip_norm, low=1e-25, high=1e12)
        validate.choice("neighboring", self.neighboring, ("replace_one", "zero_out"))
        validate.flag("server_noise", self.server_noise)
        if self.coordinates is not None:
            validate.whole(
                "coordinates", self.coordinates, low=1, high=self.size,
                why=f"a rotated update of {self.dimension} parameters has {self.size} of them",
            )  # fmt: skip

    @property
    def size(self) -> int:
        # Rotations are fast Hadamard transforms, which take a power of two.
        return 1 << (self.dimension - 1).bit_length()

    @property
    def sharing(self) -> int:
        return self.cohort if self.trust == "aggregate" else 1

    @property
    def part(self) -> float:
        return 1.0 if self.coordinates is None else math.sqrt(self.coordinates / self.size)

    @property
    def levels(self) -> int:
        # A channel's code is one byte at most; only integer noise takes more bits.
        return 2 ** min(self.bits, 8)

    @property
    def clip(self) -> float:
        return self.clip_at(CLIP_RMS_UNITS)

    def clip_at(self, rms_units: float) -> float:
        # No coordinate exceeds the norm of the whole: a wider clip would cost noise for nothing.
        return six_digits(min(rms_units / math.sqrt(self.size), 1.0) * self.clip_norm)

    @property
    def distance(self) -> float:
        return (2 if self.neighboring == "replace_one" else 1) * self.clip_norm


@dataclass(frozen=True, slots=True)
class UpdateFamily:
    """A one-parameter family of a whole-update mechanism: a larger number is more private.

    Attributes:
        parameters: from the number to the mechanism's parameters, six digits each.
        reach: smallest and largest number to search.
        start: first guess, from the standard deviation of Gaussian noise that meets the target, on
            each update (`local`) or a client's share of it (`aggregate`).
    """

    parameters: Callable[[float], dict[str, Any]]
    reach: tuple[float, float]
    start: Callable[[float], float]


def noise_family(
    setting: UpdateSetting,
    clients: int = 1,
    reach: tuple[float, float] = (2e-12, 2e12),
    **fixed: Any,
) -> UpdateFamily:
    """Return the family of a mechanism that adds noise, by its `noise_multiplier`.

    Args:
        setting: dimension, cohort, bits, trust and clipping threshold.
        clients: number of clients that share the noise.
        reach: smallest and largest noise multiplier.
        fixed: its other parameters, except `clip_norm`.
    """
    parameters = {"clip_norm": setting.clip_norm, **fixed}
    norm = setting.clip_norm * setting.part
    return UpdateFamily(
        lambda t: {**parameters, "noise_multiplier": six_digits(t)},
        reach,
        lambda deviation: deviation * math.sqrt(clients) / norm,
    )


def six_digits(value: float) -> float:
    # Parameters are rounded before they are certified, so that what is printed was certified.
    return float(f"{value:.6g}")


def even_values(reach: float, levels: int) -> list[float]:
    """Return evenly spaced values from -reach to reach, the reach rounded to six digits."""
    reach = six_digits(reach)
    return [float(value) for value in np.linspace(-reach, reach, levels)]


def margins(target: CoordinateTarget) -> np.ndarray:
    """Return a grid of margins, in units of clip, from the smallest one that meets the target."""
    # Finer where a channel is quick to compute.
    count = 41 if target.levels <= 4 else 21 if target.levels <= 16 else 11
    grid, least = np.geomspace(0.01, 100, count), _least_margin(target)
    # The first one misses the target, so that there is an edge to bisect even if all others meet
    # it.
    return np.array([0.9 * least, least, 1.5 * least, *grid[grid > 1.6 * least]])


def few_margins(target: CoordinateTarget) -> np.ndarray:
    """Return a coarser grid of margins, for channels that are slow to compute."""
    least = _least_margin(target)
    return np.geomspace(least, max(16 * least, 4.0), 10 if target.levels <= 16 else 6)


def _least_margin(target: CoordinateTarget) -> float:
    # Below it no unbiased channel meets the target: two levels at ±clip·(1 + margin) have the least
    # epsilon, log((2 + margin) / margin). Slightly above, for rounding.
    return 2 / math.expm1(target.epsilon) * (1 + 1e-5)


@dataclass(frozen=True, slots=True)
class Tuning:
    """The families by which a mechanism is tuned.

    Attributes:
        coordinate: the family for one coordinate's epsilon; None if it follows from the
            constructor's signature, or if there is none.
        update: from a setting to the family for a whole run's guarantee; None if there is none.
        possible: False for a fixed channel.
        slow: searches that take tens of seconds, and are left out by default: `coordinate`, or
            whole updates under a kind of trust.
    """

    coordinate: CoordinateFamily | None = None
    update: Callable[[UpdateSetting], UpdateFamily] | None = None
    possible: bool = True
    slow: tuple[str, ...] = ()


# The record that registers a mechanism, written in the file of its constructor.
#
# The table imports every module of `randquant.mechanisms` (or, for whole-update mechanisms
# without a channel, of `randquant.aggregation`) that defines `RECORDS`, a tuple of records. Every
# command, table, plot and contract test then includes the mechanism.

DEFAULT_PLACE = 1000
"""Place of a mechanism that states none: after all of this package."""


@dataclass(frozen=True, slots=True)
class MechanismRecord:
    """One mechanism: its constructor, its parameters' meanings, and the families to tune it by.

    Attributes:
        name: its name in commands and records: lower-case letters, digits and hyphens.
        constructor: takes the parameters by name and returns a Channel, or a mechanism for whole
            updates if `whole_update` is set; raises ValueError for invalid parameters.
        help: one line on each parameter, by name, for the command line.
        example: parameters of an example, as JSON: few codes, evenly spaced. Contract tests build
            every mechanism with them.
        tuning: the families by which it is tuned to a target.
        trusts: the kinds of trust that it supports; empty if it protects nothing.
        whole_update: True for a mechanism for whole updates without a channel.
        run_settings: settings of a run, such as `cohort`, that the constructor takes as well.
        baseline: True if it samples in floating point: for comparison, not for deployment.
        helper_noise: True if the helper of secure sums adds the noise: planned only where
            `Privacy.noise` asks for it, since a deployment then needs a helper.
        implied: from the parameters to those that the constructor then chooses by itself and that
            change a figure: commands print them, and say how to turn them off.
        place: its position in lists and tables, which are ordered by place, then by name.
        parameters: names of the mechanism's own parameters, those without `run_settings`.

    Raises:
        ValueError: the name is malformed, a parameter cannot be given by name, or help or the
            example names an unknown parameter.

    Example:
        >>> def fair_coin(clip: float): ...
        >>> MechanismRecord("fair-coin", fair_coin, {"clip": CLIP}).parameters
        ('clip',)
    """

    name: str
    constructor: Callable[..., Any]
    help: Mapping[str, str] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    trusts: tuple[Trust, ...] = ("local", "aggregate")
    whole_update: bool = False
    run_settings: tuple[str, ...] = ()
    baseline: bool = False
    helper_noise: bool = False
    implied: Callable[..., Mapping[str, float]] | None = None
    place: int = DEFAULT_PLACE

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.name):
            raise ValueError(
                f"Expected a name of lower-case letters, digits and hyphens, got {self.name!r}."
            )
        parameters = self.signature.values()
        if not all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
            raise ValueError(
                f"Expected the constructor of {self.name} to take its parameters by name."
            )
        for parameter in self.help:
            if parameter not in self.signature:
                raise ValueError(
                    f"Expected help about parameters of {self.name}, "
                    f"{', '.join(self.signature)}; got {parameter!r}."
                )
        if not set(self.example) <= set(self.parameters):
            raise ValueError(
                f"Expected an example with parameters of {self.name}, "
                f"{', '.join(self.parameters)}; got {', '.join(self.example)}."
            )

    @property
    def signature(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.constructor).parameters

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name in self.signature if name not in self.run_settings)

    def meaning(self, parameter: str) -> str:
        return self.help.get(parameter, "see the mechanism's documentation")

    def chosen_by_default(self, parameters: Mapping[str, Any]) -> dict[str, float]:
        """Return the parameters that were not given and that the constructor sets to non-zero."""
        needed = {name for name, one in self.signature.items() if one.default is one.empty}
        complete = needed <= set(parameters) <= set(self.signature)
        return dict(self.implied(**parameters)) if self.implied and complete else {}

    def notes(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return a sentence on each parameter that is chosen by default, and how to turn it off.

        Example:
            >>> from randquant.mechanisms.registry import channel_mechanisms
            >>> channel_mechanisms()["pbm"].notes({"clip": 1.0, "theta": 0.35, "trials": 15})[0]
            'pbm has mixing=2^-20 by default (share of codes drawn evenly; 0 is PBM as published): \
set mixing=0 (--mixing 0) to turn it off'
        """
        return [
            f"{self.name} has {name}={_as_power(value)} by default ({self.meaning(name)}): "
            f"set {name}=0 (--{name.replace('_', '-')} 0) to turn it off"
            for name, value in self.chosen_by_default(parameters).items()
        ]


def _as_power(value: float) -> str:
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{value:g}"


def parameter_hint(parameter: inspect.Parameter) -> Any:
    """Return the kind of a constructor's parameter, whose annotation may be a class or its name.

    Returns:
        int, float, str or bool; int | float without an annotation; otherwise a list of numbers, or
        a count and a list.

    Example:
        >>> def constructor(clip: float, bins: int | Sequence[float]): ...
        >>> [parameter_hint(each) for each in inspect.signature(constructor).parameters.values()]
        [<class 'float'>, int | list[float]]
    """
    annotation = parameter.annotation
    name = getattr(annotation, "__name__", str(annotation)).removesuffix(" | None")
    known = {"int": int, "float": float, "str": str, "bool": bool, "_empty": int | float}
    if name in known:
        return known[name]
    return int | list[float] if name.startswith("int |") else list[float]


CLIP = "per-coordinate clipping threshold, > 0"
CLIP_NORM = (
    "clipping threshold of a whole update's norm, > 0; train and account take it for every channel"
)
MARGIN = "how far the outermost level lies beyond clip, >= 0"
LEVELS = "number of codes, 2 to 256"
EPSILON = "pure epsilon per coordinate"
INPUTS = "vertices between which inputs are dithered"
DENSITY = "samples of the input, as A,B,... or @FILE; uniform unless given"
REACH = "largest magnitude of a searched level"
VALUES = "increasing values of the codes, as A,B,..."
# Under both relations, as other libraries count it.
NOISE_MULTIPLIER = "standard deviation of the noise in units of clip_norm, as in other libraries"


# How files have a noise multiplier. Version 0.1.0 counted it in units of 2 * clip_norm, and its
# files say so by the name `noise_multiplier`: that name has its old meaning in every file, and
# today's files have another name, so that neither is taken for the other.

STORED_MULTIPLIER = "noise_in_clip_norms"
"""Name of a `noise_multiplier` in files: the noise's standard deviation in units of clip_norm."""

NOISY_MECHANISMS_OF_0_1_0 = (
    "binomial", "discrete-gaussian", "gaussian", "helper-noise", "local-gaussian", "sign-sgd",
    "skellam",
)  # fmt: skip
"""The mechanisms of version 0.1.0 that have a noise multiplier. One's own may have a parameter of
that name, which means in files what it means in Python."""


def stored_parameters(mechanism: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mechanism's parameters as files have them.

    Example:
        >>> stored_parameters("sign-sgd", {"clip_norm": 1.0, "noise_multiplier": 4.0})
        {'clip_norm': 1.0, 'noise_in_clip_norms': 4.0}
    """
    return _renamed(mechanism, parameters, "noise_multiplier", STORED_MULTIPLIER)


def parameters_from_file(mechanism: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mechanism's parameters from its fields in a file, those of version 0.1.0 too.

    Example:
        >>> parameters_from_file("sign-sgd", {"noise_multiplier": 2.0})  # in units of 2 * clip_norm
        {'noise_multiplier': 4.0}
        >>> parameters_from_file("sign-sgd", {"noise_in_clip_norms": 4.0})
        {'noise_multiplier': 4.0}
    """
    if mechanism in NOISY_MECHANISMS_OF_0_1_0 and "noise_multiplier" in fields:
        if STORED_MULTIPLIER in fields:
            raise ValueError(
                f"Expected noise_multiplier or {STORED_MULTIPLIER}, which count the same noise in "
                f"different units, got both: {validate.shown(fields['noise_multiplier'])} and "
                f"{validate.shown(fields[STORED_MULTIPLIER])}."
            )
        validate.real("noise_multiplier", fields["noise_multiplier"])
        # The only place where the old unit becomes today's; exact, as is all that follows from it.
        return {**fields, "noise_multiplier": 2 * validate.number(fields["noise_multiplier"])}
    return _renamed(mechanism, fields, STORED_MULTIPLIER, "noise_multiplier")


def parameters_of_0_1_0(mechanism: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mechanism's stored parameters as version 0.1.0 would have stored them.

    Digests of runs are made of these, so that a run of that version is known again.

    Example:
        >>> parameters_of_0_1_0("sign-sgd", {"noise_in_clip_norms": 4.0})
        {'noise_multiplier': 2.0}
    """
    fields = _renamed(mechanism, stored, STORED_MULTIPLIER, "noise_multiplier")
    if fields.keys() == stored.keys():
        return fields
    value = fields["noise_multiplier"]
    # An integer was stored as one, and a digest tells 2 from 2.0.
    whole = type(value) is int and value % 2 == 0
    return {**fields, "noise_multiplier": value // 2 if whole else value / 2}


def multiplier_in_payloads(noise_multiplier: float) -> float:
    """Convert a noise multiplier to the number that payloads' fingerprints are made of.

    It is in units of 2 * clip_norm, as version 0.1.0 has it: its payloads are read as they were
    meant, and one of another unit's equal number, with half or twice the noise, is refused.
    """
    return noise_multiplier / 2


def _renamed(
    mechanism: str, parameters: Mapping[str, Any], before: str, after: str
) -> dict[str, Any]:
    # In the same order.
    if mechanism not in NOISY_MECHANISMS_OF_0_1_0:
        return dict(parameters)
    return {after if name == before else name: value for name, value in parameters.items()}


# The table of all mechanisms by name, from their own modules or registered by a user.


@functools.cache
def _known() -> dict[str, MechanismRecord]:
    # Filled when it is first used, since the modules with records import this one.
    package = __name__.rpartition(".")[0]
    return {record.name: record for record in records_in(package)}


def records_in(package: str) -> Iterator[MechanismRecord]:
    """Yield the records that a package's modules list in `RECORDS`, in the order of their names.

    Modules are found by Python's import system, in a folder or a zip file; subpackages are skipped.

    Args:
        package: full name, such as `randquant.mechanisms`.
    """
    places = importlib.import_module(package).__path__
    names = [module.name for module in pkgutil.iter_modules(places) if not module.ispkg]
    for name in sorted(names):
        yield from getattr(importlib.import_module(f"{package}.{name}"), "RECORDS", ())


def add(record: MechanismRecord) -> None:
    """Add a record to the table.

    Raises:
        ValueError: its name is taken by a mechanism of any kind.
    """
    if record.name in _known():
        raise ValueError(f"Expected a name that is not taken, got {record.name!r}: choose another.")
    _known()[record.name] = record


def known_mechanisms() -> dict[str, MechanismRecord]:
    """Return every record in the table, by name: channels first, then by place and name.

    Whole-update mechanisms are included once `randquant.aggregation` is imported; its
    `all_mechanisms` therefore always includes them.
    """
    ordered = sorted(_known().values(), key=lambda r: (r.whole_update, r.place, r.name))
    return {record.name: record for record in ordered}


def channel_mechanisms() -> dict[str, MechanismRecord]:
    """Return the records whose constructor returns a Channel, by name.

    Example:
        >>> record = channel_mechanisms()["pbm"]
        >>> record.parameters
        ('clip', 'theta', 'trials', 'inputs', 'mixing')
        >>> record.meaning("theta")
        'success probability is 1/2 + theta x / clip; 0 to 1/2'
    """
    return {name: r for name, r in known_mechanisms().items() if not r.whole_update}


def build(name: str, parameters: Mapping[str, Any]) -> Channel:
    """Build a mechanism's channel from its name and parameters.

    Raises:
        ValueError: the name is unknown, or a parameter is missing, unknown or out of bounds.

    Example:
        >>> build("pbm", {"clip": 1.0, "theta": 0.25, "trials": 15}).levels
        16
    """
    channels = channel_mechanisms()
    record = channels[validate.choice("mechanism", name, channels)]
    return validate.call(name, record.constructor, parameters)


def notes_on(name: str, parameters: Mapping[str, Any]) -> list[str]:
    """Return a sentence on each parameter that a mechanism chose by itself.

    Args:
        name: a mechanism's; one that is not in the table has no notes.
        parameters: those that were given.
    """
    record = _known().get(name)
    return [] if record is None else record.notes(parameters)


def register(
    name: str,
    constructor: Callable[..., Channel],
    *,
    help: Mapping[str, str] | None = None,
    example: Mapping[str, Any] | None = None,
    coordinate: CoordinateFamily | None = None,
    update: Callable[[UpdateSetting], UpdateFamily] | None = None,
) -> None:
    """Add a mechanism: every command, table and plot of this process then includes it.

    Args:
        name: lower-case letters, digits and hyphens; not yet taken.
        constructor: takes `clip` and other parameters by name, returns a Channel, and raises
            ValueError for invalid parameters. If they are annotated with `int` or `float`, and the
            number of codes is called `levels`, then commands can read them, and `randquant
            compare` searches one or two `float` parameters for a target epsilon.
        help: one line on each parameter, by name, for `--help`.
        example: parameters of an example.
        coordinate: the numbers that `randquant compare` searches, and their grids, if they do not
            follow from the signature.
        update: from a setting to the number that `randquant plan` searches; without it, `plan`
            leaves the mechanism out.

    Raises:
        ValueError: the name is taken or malformed, the constructor takes no `clip`, or help names
            an unknown parameter.

    References:
        `docs/own-mechanism.md`, with a complete example.

    Example:
        >>> from randquant.mechanisms.random_rounding import stochastic_rounding
        >>> register("wide-rounding", lambda clip, levels: stochastic_rounding(clip, levels, clip))
        >>> build("wide-rounding", {"clip": 1.0, "levels": 2}).levels
        2
        >>> unregister("wide-rounding")
    """
    tuning = Tuning(coordinate, update)
    record = MechanismRecord(name, constructor, help or {}, example or {}, tuning)
    if "clip" not in record.parameters:
        raise ValueError(
            f"Expected the constructor of {name} to take clip and its other parameters by name."
        )
    add(record)


def unregister(name: str) -> None:
    """Remove a mechanism, for example to register it again after a change.

    Raises:
        ValueError: no mechanism has that name.
    """
    del _known()[validate.choice("mechanism", name, known_mechanisms())]

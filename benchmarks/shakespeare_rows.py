"""The rows of `shakespeare.py` and their settings, chosen on public roles."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shakespeare_picture import task

PUBLIC_RATES = {3: task.RATE, 24: 6e-3}
"""Passes over public text, and their largest step size."""

FEW, MANY = PUBLIC_RATES

ROUNDS, BATCH, DELTA = 4, 8, 1e-5

STAND_INS = 480
"""Portions of public roles' text that steps are chosen on."""


class Setting(NamedTuple):
    """How a part of the model is trained.

    Attributes:
        dimension: its parameters.
        clip_norm: of a client's gradient.
        rate: the server's step with the mean of clipped gradients, without much noise.
        rates: the same by epsilon, the shorter the more noise there is.
    """

    dimension: int
    clip_norm: float
    rate: float
    rates: dict[float, float]


SETTINGS = {
    FEW: {
        "adapters": Setting(3840, 1.4, 0.2, {2.0: 0.025, 4.0: 0.05, 8.0: 0.08, 16.0: 0.12}),
        "linear layers": Setting(
            103_424, 4.0, 0.08, {2.0: 0.0025, 4.0: 0.0075, 8.0: 0.02, 16.0: 0.05}
        ),
        "full": Setting(115_536, 1.0, 0.1, {2.0: 0.05, 4.0: 0.08}),
    },
    MANY: {
        "adapters": Setting(3840, 1.4, 0.1, {2.0: 0.003, 8.0: 0.035}),
        "linear layers": Setting(
            103_424, 4.0, 0.08, {2.0: 0.0015, 4.0: 0.0045, 8.0: 0.012, 16.0: 0.03}
        ),
        "full": Setting(115_536, 1.0, 0.1, {}),
    },
}
"""Chosen on public roles, see `shakespeare_choose.py`; papers/docs/text.md says which lie
between or beyond its figures."""

DAMPING = 1.0
"""Of the directions of all linear layers, chosen likewise."""

POOLED_PASSES = 4
POOLED_RATES = {"adapters": 3e-3, "plain adapters": 1e-2, "full": 3e-3}
"""Of Adam on all clients' windows in one place."""

PLAIN_RANK, PLAIN_LAYERS = 6, ("blocks.1.wide", "blocks.1.narrow")
"""Plain adapters of as many parameters, both of whose matrices are trained."""

EPSILONS = (2.0, 4.0, 8.0, 16.0)
OTHERS = ("rqm", "mvu", "sparse-ternary", "imvu")
TENTH, TENTH_RATE = 410, 0.1**0.5
"""Of 4,096 rotated coordinates; what their noise leaves of a step."""


class Wanted(NamedTuple):
    """A row: what is trained, how it is protected, and how many clients each role stands for.

    The model had so many `passes` over public text before.
    """

    part: str
    mechanism: str
    epsilon: float | None
    seed: int = 0
    times: int = 1
    passes: int = FEW


def queue(seeds: int) -> Iterator[Wanted]:
    """All rows, the most telling first."""
    yield Wanted("adapters", "pooled", None)
    yield Wanted("plain adapters", "pooled", None)
    for seed in range(seeds):
        yield from curve("adapters", seed, ("one bit", "gaussian", "tenth of a bit"))
        if seed == 0:
            yield from ceilings()
        for passes in (FEW, MANY):
            yield from curve("linear layers", seed, ("gaussian", "one bit"), passes)
        yield from curve("full", seed, ("gaussian", "one bit"))
        yield from curve("adapters", seed, ("one bit",), MANY, (8.0, 2.0))
        for epsilon, name in itertools.product((8.0, 2.0), OTHERS):
            yield Wanted("adapters", name, epsilon, seed)


def curve(
    part: str,
    seed: int,
    mechanisms: Sequence[str],
    passes: int = FEW,
    epsilons: Sequence[float] = (8.0, 2.0, 4.0, 16.0),
) -> Iterator[Wanted]:
    """What training a part wins without privacy, and at each epsilon."""
    yield Wanted(part, "none", None, seed, passes=passes)
    for epsilon, name in itertools.product(epsilons, mechanisms):
        yield Wanted(part, name, epsilon, seed, passes=passes)


def ceilings() -> Iterator[Wanted]:
    """What can be won at most, and by more clients."""
    for passes, name in itertools.product((FEW, MANY), ("pooled", "public again")):
        yield Wanted("full", name, None, passes=passes)
    for part, epsilon, times, passes in (
        ("adapters", 2.0, 10, FEW),
        ("adapters", 2.0, 100, FEW),
        ("linear layers", 8.0, 10, FEW),
        ("linear layers", 2.0, 10, FEW),
        ("linear layers", 2.0, 10, MANY),
        ("linear layers", 2.0, 100, MANY),
    ):
        yield Wanted(part, "gaussian", epsilon, 0, times, passes)

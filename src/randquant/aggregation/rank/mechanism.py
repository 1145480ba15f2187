"""A whole update in three bytes: the index of a coordinate, drawn by its rank.

A client rotates its update, ranks all coordinates and their negatives, draws a rank from one table
of integers and sends the index that has it. Derivation: `docs/theory/rank.md`.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation.defaults import MechanismDefaults, error_of
from randquant.aggregation.error import CoordinateError
from randquant.aggregation.payloads import each, finite
from randquant.aggregation.rank.designs import LEAST, MOST, gain, graded, shared, two_levels
from randquant.aggregation.rank.drawing import draw_below, index_at, ranks_of
from randquant.aggregation.rank.payload import CHECK, RankForm
from randquant.aggregation.rank.release import RankRelease
from randquant.aggregation.rank.rotations import GroupRotation, spread_size
from randquant.aggregation.rank.table import RankTable
from randquant.channels.keys import Key
from randquant.mechanisms.record import CLIP_NORM, MechanismRecord
from randquant.mechanisms.tuning import Tuning, UpdateFamily, UpdateSetting, six_digits
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust

GROUPS = 2**24
"""Default number of groups."""


@final
@dataclass(frozen=True, slots=True)
class RankMechanism(MechanismDefaults):
    """The index of a signed coordinate of the rotated update, drawn by its rank.

    Args:
        clip_norm: L2 norm of an update beyond which it is shortened, within [1e-30, 1e30].
        epsilon: log of the largest quotient of weights, 1e-6 to 30: the pure epsilon of one update
            under `replace_one`.
        order: None for the two levels that are the best table for one participation; else the
            Rényi order for which the shape of a table for many participations is the best.
        tuned_to: the neighbouring relation for which the table is the best one; its guarantee is
            known for both.
        groups: how many groups of clients there are, each with a rotation of its own; the group of
            a client without a number is drawn with its key, whatever its update, and stated in its
            payload.
        rotation_seed: public, the same for all clients and the server, and fixed before the updates
            are known; of each round another one, see `in_round`.
        client: number of the client whose updates these are, see `of_client`: its group follows
            from that and `rotation_seed`, and its payloads are the index alone.

    Guarantees:
        The bound of `release` holds for what is sent, whatever the rotation: rounding may only
        exchange ranks, and ranks are drawn from exactly the certified integers.
        `mean` is unbiased for the mean of the clipped updates if rotations are uniformly
        distributed, which they are up to 64 coordinates. Beyond, a small bias is possible, and was
        not found: see `docs/theory/rank.md`.
        An update shorter than clip_norm is sent with a probability of its norm over clip_norm, else
        a uniform index.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Bhowmick et al. 2018 and Asi, Feldman and Talwar 2022 (PrivUnit); Feldman and Talwar 2021
        (short messages); Isik et al. 2023 (RRSC).

    Example:
        >>> mechanism = RankMechanism(clip_norm=1.0, epsilon=4.0)
        >>> update, root = np.full(5, 0.1, dtype=np.float32), Key.from_seed(0)
        >>> payloads = {n: mechanism.of_client(n).encode(update, root.fold_in(n)) for n in (3, 8)}
        >>> mechanism.mean(payloads, 5).shape, len(payloads[3])
        ((5,), 1)
        >>> len(mechanism.encode(update, root))  # without a number: it states its group
        6
    """

    clip_norm: float
    epsilon: float
    order: float | None = None
    tuned_to: Neighboring = "replace_one"
    groups: int = GROUPS
    rotation_seed: int = 0
    client: int | None = None

    cohort = 1
    channel = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("clip_norm", self.clip_norm, low=1e-30, high=1e30)
        validate.real("epsilon", self.epsilon, low=LEAST, high=MOST)
        if self.order is not None:
            validate.real("order", self.order, above=1, high=1e3)
        validate.choice("tuned_to", self.tuned_to, NEIGHBORINGS)
        validate.whole("groups", self.groups, low=1, high=2**32)
        validate.whole("rotation_seed", self.rotation_seed, low=0, high=2**64 - 1)
        if self.client is not None:
            validate.whole("client", self.client, low=0, high=2**64 - 1)

    @property
    def trust(self) -> Trust:
        """The server sees each client's index."""
        return "local"

    def table(self, dimension: int) -> RankTable:
        """The table of ranks for updates of this dimension."""
        size = self.size(dimension)
        if self.order is None:
            return two_levels(size, self.epsilon, self.tuned_to)
        return graded(size, self.epsilon, self.order, self.tuned_to)

    def in_round(self, seed: int) -> RankMechanism:
        """The same mechanism with the rotations of a round."""
        return replace(self, rotation_seed=seed)

    def of_client(self, number: int) -> RankMechanism:
        """With the one group that this client has in a round."""
        number = validate.whole("client", number, low=0, high=2**64 - 1)
        return replace(self, client=number)

    def group(self, key: Key) -> int:
        """The client's group: by its number and the seed, or else drawn with its key."""
        if self.client is not None:
            key = Key.from_seed(self.rotation_seed).fold_in("client", self.client)
        return int(draw_below(self.groups, key.fold_in("group"))[0])

    def completed(self, payload: bytes, dimension: int) -> bytes:
        """With the group that the client has by its number, whatever it used: it has no choice."""
        return self.form(dimension).payload(*self._read(payload, dimension))

    def mean(
        self,
        payloads: Iterable[bytes] | Mapping[int, bytes],
        dimension: int | None = None,
        key: Key | None = None,
    ) -> np.ndarray:
        """By number, as the mechanism of the round; in a list, a client's own only."""
        if self.client is not None and isinstance(payloads, Mapping):
            return replace(self, client=None).mean(payloads, dimension, key)
        return super(RankMechanism, self).mean(payloads, dimension, key)

    def rotation(self, dimension: int, group: int) -> GroupRotation:
        """The rotation of a group's updates."""
        return GroupRotation(dimension, self.rotation_seed, group)

    def length(self, dimension: int) -> float:
        """The norm of every decoded update, before padding is cut off."""
        return self.clip_norm / gain(self.table(dimension))

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        """Draw a group and a rank, and find the index that has it."""
        form, (direction, norm) = self.form(vector.size), _direction(vector)
        key.claim()
        group = self.group(key)
        index = self._index(direction, norm, group, key)
        return form.index(index) if self.client is not None else form.payload(group, index)

    def _index(self, direction: np.ndarray, norm: float, group: int, key: Key) -> int:
        """Draw the index that is sent."""
        dimension = direction.size
        # theory/rank.md, Proposition 3: any probability is covered, also a rounded one.
        sent = min(norm / self.clip_norm, 1.0)
        if int(key.fold_in("length").words(1)[0]) >= int(sent * 2.0**64):
            return int(draw_below(2 * self.size(dimension), key.fold_in("uniform"))[0])
        turned = self.rotation(dimension, group).forward(direction)
        table = self.table(dimension)
        rank = int(ranks_of(table, draw_below(table.total, key.fold_in("rank")))[0])
        return index_at(turned, rank)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        """Add up each group's signed coordinates, and rotate each group's sum back."""
        if self.client is not None and len(payloads) > 1:
            raise ValueError(
                f"Expected one payload, of client {self.client}, got {len(payloads)}: give those "
                "of several clients by number, mean({number: payload}, dimension)."
            )
        size = self.size(dimension)
        read: list[tuple[int, int]] = []
        each(payloads, lambda payload: read.append(self._read(payload, dimension)))
        total = np.zeros(dimension)
        for group, members in groupby(sorted(read), key=lambda pair: pair[0]):
            rotation = self.rotation(dimension, group)
            total += rotation.inverse(_signed(size, (index for _, index in members)))
        return (total * (self.length(dimension) / len(payloads))).astype(np.float32)

    def size(self, dimension: int) -> int:
        """Coordinates of a rotated update, of which one is sent."""
        return spread_size(dimension)

    def log_equal(self, dimension: int) -> float:
        """As often as two clients share a group and send its likeliest index."""
        table, groups = self.table(dimension), self.groups if self.client is None else 1
        return min(math.log(table.weights[0] / table.total / groups) + 1e-12, 0.0)

    def payload_bytes(self, dimension: int) -> int:
        """The index alone of a client with a number; else what decodes it comes before."""
        form = self.form(dimension)
        return form.bytes if self.client is None else form.of_index

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> RankRelease:
        """One index in each round; a zero update sends a uniform one."""
        return RankRelease(self.table(dimension), rounds, neighboring)

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Unbiased; every decoded update has the same norm, in any direction."""
        return x, np.maximum(self.length(dimension) ** 2 / self.size(dimension) - x**2, 0.0)

    def expected_error(self, dimension: int) -> CoordinateError:
        """As `UpdateMechanism.expected_error`, of clients whose updates are equal: the worst case.

        What the clients of one group have in common does not average out.
        """
        error = error_of(self, dimension)
        together = error.variance * shared(self.table(dimension)) / self.groups
        return replace(error, bias=error.bias + together)

    def record(self) -> dict[str, Any]:
        """All arguments; the client's number only where it is set."""
        given = {
            k: value for k, value in asdict(self).items() if k != "client" or value is not None
        }
        return {"mechanism": "rank", **given}

    def form(self, dimension: int) -> RankForm:
        """How payloads of updates of this dimension are put together."""
        return _form(replace(self, client=None), dimension)

    def _read(self, payload: bytes, dimension: int) -> tuple[int, int]:
        """(group, index) of a payload, or ValueError."""
        form = self.form(dimension)
        if self.client is None:
            return form.read(payload)
        # Whoever chose a group after seeing its rotations could push the mean in a direction.
        return self.group(Key.from_seed(0)), form.read_index(payload)


PART = 2**14
"""Coordinates that are widened at a time, in cache: a copy of an update takes longer to touch."""


def _direction(vector: np.ndarray) -> tuple[np.ndarray, float]:
    """(a multiple of the vector, its norm), without overflow; ValueError unless it is finite."""
    parts = (vector[at : at + PART].astype(np.float64) for at in range(0, vector.size, PART))
    with np.errstate(over="ignore", invalid="ignore"):
        square = sum(float(part @ part) for part in parts)
    if 1e-200 < square < 1e300:
        return vector, math.sqrt(square)
    wide = finite(vector).astype(np.float64)
    largest = float(np.abs(wide).max(initial=0.0))
    if largest == 0:
        return wide, 0.0
    direction = wide / largest
    return direction, math.sqrt(float(direction @ direction)) * largest


def _signed(size: int, indices: Iterable[int]) -> np.ndarray:
    """(size,) sum of signed coordinates."""
    total = np.zeros(size)
    for index in indices:
        total[index % size] += 1.0 if index < size else -1.0
    return total


@functools.lru_cache(maxsize=64)
def _form(mechanism: RankMechanism, dimension: int) -> RankForm:
    table = mechanism.table(dimension)
    parts = (dimension, mechanism.rotation_seed, table.counts, table.weights)
    check = hashlib.sha256(f"randquant rank {parts}".encode()).digest()[:CHECK]
    return RankForm(check, mechanism.groups, table.size)


def _family(setting: UpdateSetting, **shape: float) -> UpdateFamily:
    own: dict[str, Any] = {"clip_norm": setting.clip_norm, **shape}
    if setting.neighboring != "replace_one":
        own["tuned_to"] = setting.neighboring
    return UpdateFamily(
        lambda t: {**own, "epsilon": six_digits(1 / t)},
        (1 / MOST * (1 + 1e-5), 1e5),
        lambda deviation: deviation / (5 * setting.distance),
    )


GRADED_ORDER = 4.0
"""The order whose tables are good from about ten participations on."""

ZERO_OUT_ORDER = 2.0
"""The same for tables that are tuned to `zero_out`."""


def _graded_family(setting: UpdateSetting) -> UpdateFamily:
    if setting.neighboring == "replace_one":
        return _family(setting, order=GRADED_ORDER)
    return _family(setting, order=ZERO_OUT_ORDER)


def graded_rank(
    clip_norm: float,
    epsilon: float,
    order: float = GRADED_ORDER,
    tuned_to: Neighboring = "replace_one",
    groups: int = GROUPS,
    rotation_seed: int = 0,
) -> RankMechanism:
    """The index of a coordinate by its rank, for clients that take part in many rounds."""
    return RankMechanism(clip_norm, epsilon, order, tuned_to, groups, rotation_seed)


HELP = {
    "clip_norm": CLIP_NORM,
    "epsilon": "log of the largest quotient of weights, 1e-6 to 30",
    "order": "Rényi order that shapes the table, > 1; two levels unless given",
    "tuned_to": "replace_one or zero_out: what the table is the best for",
    "groups": "how many groups of clients have a rotation of their own",
    "rotation_seed": "public seed of the rotations",
}

RECORDS = (
    MechanismRecord(
        "rank",
        RankMechanism,
        HELP,
        example={"clip_norm": 1.0, "epsilon": 2.0},
        tuning=Tuning(update=_family),
        trusts=("local",),
        whole_update=True,
        run_settings=("client",),
    ),
    MechanismRecord(
        "graded-rank",
        graded_rank,
        HELP,
        example={"clip_norm": 1.0, "epsilon": 2.0},
        tuning=Tuning(update=_graded_family),
        trusts=("local",),
        whole_update=True,
    ),
)

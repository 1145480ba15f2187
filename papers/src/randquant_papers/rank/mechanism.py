"""A whole update in three bytes: the index of a coordinate, drawn by its rank.

A client rotates its update, ranks all coordinates and their negatives, draws a rank from one table
of integers and sends the index that has it. Derivation: `papers/docs/rank-theory.md`.
"""

from __future__ import annotations

import functools
import hashlib
import math
from binascii import crc_hqx
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import cast, final

import numba
import numpy as np

from randquant import Key
from randquant.aggregation import MechanismDefaults
from randquant_papers.rank.checks import Neighboring, real, relation, whole
from randquant_papers.rank.designs import (
    MAX_LOG_RATIO,
    MIN_LOG_RATIO,
    GroupRotation,
    RankTable,
    gain,
    graded,
    shared,
    spread_size,
    two_levels,
)
from randquant_papers.rank.release import RankRelease, Trust

# The bytes of a payload of a rank mechanism.

CHECK_BYTES = 2
"""Bytes of a payload that stands alone: they tell its table, dimension and rotations."""


@dataclass(frozen=True, slots=True)
class RankForm:
    """Two forms of an index: alone, and in a payload that says what else is needed to decode it.

    Index j < size is coordinate j, size + j its negative, little-endian. A client whose number the
    server knows sends only that. A payload that stands alone has a checksum of
    CHECK_BYTES and the client's group before it: the CRC-16 of what follows, begun with `check`. It
    detects every changed byte, and a payload of another form unless both have the same `check`, as
    one of 65,536 forms has.

    Attributes:
        check: CHECK_BYTES bytes of a digest of the table, dimension and rotation.
        groups: how many groups there are.
        size: coordinates of a rotated update.
    """

    check: bytes
    groups: int
    size: int

    @property
    def of_group(self) -> int:
        """Bytes of a group."""
        return _width(self.groups)

    @property
    def of_index(self) -> int:
        """Bytes of an index."""
        return _width(2 * self.size)

    @property
    def bytes(self) -> int:
        """Bytes of a payload that stands alone."""
        return CHECK_BYTES + self.of_group + self.of_index

    def index(self, index: int) -> bytes:
        """Write an index alone."""
        return index.to_bytes(self.of_index, "little")

    def read_index(self, payload: bytes) -> int:
        """Read an index alone, or raise ValueError."""
        if len(payload) != self.of_index:
            raise ValueError(
                f"Expected an index of {self.of_index} bytes, got {len(payload)}: a client whose "
                "number is known sends nothing else; encode with mechanism.of_client(number), or "
                "give payloads that stand alone in a list."
            )
        return _below(2 * self.size, "index", payload)

    def payload(self, group: int, index: int) -> bytes:
        """Write a payload that stands alone."""
        body = group.to_bytes(self.of_group, "little") + self.index(index)
        return self._checked(body) + body

    def read(self, payload: bytes) -> tuple[int, int]:
        """Read (group, index) of a payload that stands alone, or raise ValueError."""
        if len(payload) != self.bytes:
            end = ": an index alone is decoded by its client's number, mean({number: payload})."
            raise ValueError(
                f"Expected a payload of {self.bytes} bytes, got {len(payload)}"
                f"{end if len(payload) == self.of_index else '.'}"
            )
        # The message does not show the bytes: they follow from the index that a client drew.
        if payload[:CHECK_BYTES] != self._checked(payload[CHECK_BYTES:]):
            raise ValueError(
                "Expected a payload of this table, dimension and rotation, got one with "
                "check bytes of a different mechanism, or a damaged one: encode with the same "
                "mechanism."
            )
        group = _below(self.groups, "group", payload[CHECK_BYTES : CHECK_BYTES + self.of_group])
        return group, self.read_index(payload[CHECK_BYTES + self.of_group :])

    def _checked(self, body: bytes) -> bytes:
        return crc_hqx(body, int.from_bytes(self.check, "little")).to_bytes(CHECK_BYTES, "little")


def _width(count: int) -> int:
    """Bytes of a number below count."""
    return ((count - 1).bit_length() + 7) // 8


def _below(count: int, name: str, written: bytes) -> int:
    value = int.from_bytes(written, "little")
    if value >= count:
        raise ValueError(f"Expected {name} below {count}, got {value}: it is damaged.")
    return value


# Exact draws of a rank, and the index that has it. Derivation: `papers/docs/rank-theory.md`.

MAX_SORTED_COORDINATES = 2**12
"""Up to so many coordinates are sorted, which is faster there."""

_BIN_COUNT = 2**16  # by the first 16 bits of a float's magnitude: 32 to a power of two


def draw_below(limit: int, key: Key, count: int = 1) -> np.ndarray:
    """Draw whole numbers below a limit of at most 2**62, exactly uniformly: (count,) uint64.

    Example:
        >>> draw_below(1, Key.from_seed(0), 2)
        array([0, 0], dtype=uint64)
    """
    # rank-theory.md, Proposition 2: beyond the largest multiple of the limit words are redrawn.
    last = np.uint64(2**64 // limit * limit - 1)
    kept, start = np.empty(0, dtype=np.uint64), 0
    while kept.size < count:
        asked = count + count % 2  # a cipher block holds two words
        words = key.words(asked, start)
        kept, start = np.concatenate([kept, words[words <= last]]), start + asked
    return kept[:count] % np.uint64(limit)


def ranks_of(table: RankTable, units: np.ndarray) -> np.ndarray:
    """Map units below the table's total to ranks, 0 the best: as many units as the rank weighs.

    Example:
        >>> ranks_of(RankTable((1, 3), (5, 1)), np.arange(8))
        array([0, 0, 0, 0, 0, 1, 2, 3])
    """
    weights = np.array(table.weights, dtype=np.int64)
    ends = np.cumsum(np.array(table.counts, dtype=np.int64) * weights)
    units = units.astype(np.int64)
    level = np.searchsorted(ends, units, side="right")
    before = units - (ends - np.array(table.counts) * weights)[level]
    return np.array(table.starts)[level] + before // weights[level]


def index_at(vector: np.ndarray, rank: int) -> int:
    """Find which index has a rank among the coordinates of a vector and their negatives.

    Args:
        vector: (D,) float64, finite.
        rank: 0 to 2D - 1; 0 is the largest.

    Returns:
        j for coordinate j, D + j for its negative. Equal magnitudes are in order of j, and 0 is
        positive: every index has exactly one rank.

    Example:
        >>> [index_at(np.array([1.0, -3.0]), rank) for rank in range(4)]
        [3, 0, 2, 1]
    """
    size = vector.size
    at = place_of(vector, min(rank, 2 * size - 1 - rank))
    negative = (vector[at] < 0) != (rank >= size)
    return at + size * int(negative)


def place_of(vector: np.ndarray, place: int) -> int:
    """Find the coordinate with so many magnitudes before its own.

    Args:
        vector: (D,) floats, finite; widened to float64, which is exact.
        place: 0 for the largest magnitude, to D - 1.

    Returns:
        Its index; equal magnitudes are in order of their indices, so that every coordinate has one
        place.

    Example:
        >>> [place_of(np.array([2.0, -5.0, -2.0]), place) for place in range(3)]
        [1, 0, 2]
    """
    vector = np.asarray(vector, dtype=np.float64)
    if vector.size <= MAX_SORTED_COORDINATES:
        return int(np.argsort(-np.abs(vector), kind="stable")[place])
    indices, before = _in_bin(vector.view(np.uint64), place)
    order = np.argsort(-np.abs(vector[indices]), kind="stable")
    return int(indices[order[place - before]])


@numba.njit(nogil=True, cache=True)
def _in_bin(bits: np.ndarray, place: int) -> tuple[np.ndarray, int]:
    """(indices, before): those whose bin holds the place, and how many magnitudes are in larger."""
    # Of floats that are not negative the order is that of their bits: first the sign goes.
    sign, shift = np.uint64(1), np.uint64(48)
    counts = np.zeros(_BIN_COUNT, dtype=np.int64)
    for word in bits:
        counts[(word << sign) >> shift] += 1
    at, before = _BIN_COUNT - 1, 0
    while before + counts[at] <= place:
        before += counts[at]
        at -= 1
    indices = np.empty(counts[at], dtype=np.int64)
    found = 0
    for index in range(bits.size):
        if (bits[index] << sign) >> shift == np.uint64(at):
            indices[found] = index
            found += 1
    return indices, before


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
        not found: see `papers/docs/rank-theory.md`.
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
        checked = {
            "clip_norm": real("clip_norm", self.clip_norm, low=1e-30, high=1e30),
            "epsilon": real("epsilon", self.epsilon, low=MIN_LOG_RATIO, high=MAX_LOG_RATIO),
            "groups": whole("groups", self.groups, low=1, high=2**32),
            "rotation_seed": whole("rotation_seed", self.rotation_seed, low=0, high=2**64 - 1),
        }
        if self.order is not None:
            checked["order"] = real("order", self.order, above=1, high=1e3)
        if self.client is not None:
            checked["client"] = whole("client", self.client, low=0, high=2**64 - 1)
        relation("tuned_to", self.tuned_to)
        # Plain numbers: the check bytes of a payload follow from how they are written.
        for name, value in checked.items():
            object.__setattr__(self, name, value)

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
        """Return this mechanism with the rotations of a round."""
        return replace(self, rotation_seed=seed)

    def of_client(self, number: int) -> RankMechanism:
        """Return the mechanism of one client, for it and for a server that knows its number.

        Its group then follows from its number and the round's seed, and need not be sent: it has
        no choice. `mean` of the round's mechanism takes its payloads by number. Not where it is
        hidden who takes part: a mean of such payloads may show it.

        Args:
            number: public whole number below 2**64, another one for each client.
        """
        return replace(self, client=number)

    def group(self, key: Key) -> int:
        """The client's group: by its number and the seed, or else drawn with its key."""
        if self.client is not None:
            key = Key.from_seed(self.rotation_seed).fold_in("client", self.client)
        return int(draw_below(self.groups, key.fold_in("group"))[0])

    def mean(
        self,
        payloads: Iterable[bytes] | Mapping[int, bytes],
        dimension: int | None = None,
        key: Key | None = None,
    ) -> np.ndarray:
        """Estimate the mean: of payloads that stand alone in a list, of indices by client number.

        Any client's own mechanism decodes payloads by number as that of the round does.
        """
        if not isinstance(payloads, Mapping):
            return super(RankMechanism, self).mean(payloads, dimension, key)
        if dimension is None:
            raise TypeError("Expected the dimension, which an index does not state: give it.")
        every: RankMechanism = replace(self, client=None)
        indices = cast("Mapping[int, bytes]", payloads)  # isinstance knows no types of its items
        alone = [every._alone(client, index, dimension) for client, index in indices.items()]
        return super(RankMechanism, every).mean(alone, dimension, key)

    def _alone(self, client: int, index: bytes, dimension: int) -> bytes:
        """Add the group that follows from a client's number; an error names the client."""
        own = self.of_client(client)
        try:
            return self.form(dimension).payload(*own._read(index, dimension))
        except ValueError as error:
            raise ValueError(f"payload of client {client}: {error}") from error

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
        # rank-theory.md, Proposition 3: any probability is covered, also a rounded one.
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
        for position, payload in enumerate(payloads):
            try:
                read.append(self._read(payload, dimension))
            except ValueError as error:
                raise ValueError(f"payload {position}: {error}") from error
        total = np.zeros(dimension)
        for group, members in groupby(sorted(read), key=lambda pair: pair[0]):
            rotation = self.rotation(dimension, group)
            total += rotation.inverse(_signed(size, (index for _, index in members)))
        return (total * (self.length(dimension) / len(payloads))).astype(np.float32)

    def size(self, dimension: int) -> int:
        """Coordinates of a rotated update, of which one is sent."""
        return spread_size(dimension)

    def log_equal(self, dimension: int) -> float:
        """Bound the probability that two clients share a group and send its likeliest index."""
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

    def expected_error(self, dimension: int):
        """Return `UpdateMechanism.expected_error` for clients with equal updates: the worst case.

        What the clients of one group have in common does not average out.
        """
        error = super(RankMechanism, self).expected_error(dimension)
        together = error.variance * shared(self.table(dimension)) / self.groups
        return replace(error, bias=error.bias + together)

    def form(self, dimension: int) -> RankForm:
        """Return the layout of payloads of updates of this dimension."""
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
    wide = vector.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(wide))
    if bad.size:
        raise ValueError(
            f"Expected finite values to send, got {wide[bad[0]]} at index [{bad[0]}]: drop or "
            "repair this update."
        )
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
    check = hashlib.sha256(f"randquant rank {parts}".encode()).digest()[:CHECK_BYTES]
    return RankForm(check, mechanism.groups, table.size)


GRADED_ORDER = 4.0
"""The order whose tables are good from about ten participations on."""


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

"""A channel: the distribution of one of m integer codes, given one clipped coordinate; its moments.

Every mechanism compiles to this one immutable value; certificates, moments and sampling all use it.
Its mathematics is in `docs/theory/channel.md`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from randquant._internal import validate

MAX_DENOMINATOR = 2**62
"""Largest denominator: weights, their sums and differences stay within signed 64 bits."""

DITHER_STEPS = 2**32
"""An input's position in its cell is rounded to the nearest of this many steps when encoded."""

MAX_MAGNITUDE = 1e30
"""Largest clip and value, and one over the smallest clip: well inside the range of float32."""

MIN_CELL_WIDTH = 2.0**-30
"""Narrowest cell, in units of clip. Near the ends of the range it contains some 2**22 float64
inputs; a much narrower one would contain few."""


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """The distribution of a code for every input in [-clip, clip], in exact integers.

    Between two neighbouring vertices the rows are mixed linearly: an input is first rounded at
    random to one of the two vertices, then a code is drawn from that vertex's row.

    Args:
        inputs: (V,) float64, non-decreasing, from -clip to clip; an interior input given twice
            is a jump: its left limit, then its right limit (taken at the input itself).
        values: (m,) float64, what code 0..m-1 decodes to.
        weights: (V, m) integers >= 0; row v is the distribution of the code at inputs[v].
        denominator: sum of every row; a power of two, at most 2**62.

    Attributes:
        clip: per-coordinate clipping threshold; inputs lie in [-clip, clip].
        levels: number of codes, m.
        bits: per code, ceil(log2(levels)).
        probabilities: (V, m) float64, the weights over the denominator.

    Guarantees:
        Two channels are equal exactly when all their numbers are; then so are their fingerprints.
        The arrays cannot be written to.

    Raises:
        ValueError: shapes, order, sums or the denominator are not as above.

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> channel.levels, len(channel.inputs), channel.clip
        (16, 10, 1.5)
    """

    inputs: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    denominator: int
    fingerprint: bytes = field(init=False)

    def __post_init__(self) -> None:
        # The fields are converted and checked once; then the value is frozen for good, so that a
        # certificate of it stays true.
        set_field = object.__setattr__
        set_field(self, "inputs", _frozen(validate.array("inputs", self.inputs), np.float64))
        set_field(self, "values", _frozen(validate.array("values", self.values), np.float64))
        set_field(self, "weights", _frozen(_integers(self.weights), np.int64))
        set_field(self, "denominator", validate.whole("denominator", self.denominator))
        _check(self)
        set_field(self, "fingerprint", _fingerprint(self))

    def __reduce__(self):
        # Copies and pickles are constructed anew, so that they are checked and immutable too.
        return Channel, (self.inputs, self.values, self.weights, self.denominator)

    def __eq__(self, other: object) -> bool:
        # Not by the fingerprint: what is certified of one channel is kept for those equal to it,
        # and two of one fingerprint take 2**64 hashes to find.
        return isinstance(other, Channel) and (
            self.denominator == other.denominator
            and np.array_equal(self.inputs, other.inputs)
            and np.array_equal(self.values, other.values)
            and np.array_equal(self.weights, other.weights)
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return (
            f"Channel(clip={self.clip:g}, levels={self.levels}, vertices={len(self.inputs)}, "
            f"fingerprint={self.fingerprint.hex()[:8]})"
        )

    @property
    def clip(self) -> float:
        return float(self.inputs[-1])

    @property
    def levels(self) -> int:
        return len(self.values)

    @property
    def bits(self) -> int:
        return (self.levels - 1).bit_length()

    @property
    def probabilities(self) -> np.ndarray:
        # Each within a relative 2**-53.
        return self.weights / self.denominator

    def locate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the cell of each input and where in it the input lies.

        Args:
            x: any shape, float64, within [-clip, clip].

        Returns:
            (cell, position): x lies in `cell`, and `position` is its distance from inputs[cell] in
            units of the cell's width; at a jump the right-hand cell is taken. Same shape as x,
            int64 and float64.
        """
        x = validate.array("x", x)
        if not (np.abs(x) <= self.clip).all():
            raise ValueError(
                f"Expected x within [-{self.clip:g}, {self.clip:g}], got values from {x.min():g} "
                f"to {x.max():g}."
            )
        cell = np.searchsorted(self.inputs, x, side="right") - 1
        cell = np.minimum(cell, len(self.inputs) - 2)
        # A product with the reciprocal, as in the encoder's kernel: both must agree to the bit.
        inverse = 1.0 / (self.inputs[cell + 1] - self.inputs[cell])
        return cell, (x - self.inputs[cell]) * inverse

    def mix(self, x: float) -> tuple[np.ndarray, int]:
        """Return the distribution of the code that is drawn for x: (m,) Python integers, their sum.

        Guarantees:
            This is the encoder's distribution exactly, its rounded dither included.

        Raises:
            ValueError: x is outside [-clip, clip].

        Example:
            >>> import randquant as rq
            >>> weights, total = rq.stochastic_rounding(clip=1.0, levels=2).mix(0.5)
            >>> [float(w / total) for w in weights]
            [0.25, 0.75]
        """
        point = validate.array("x", validate.number(x))
        if point.ndim:
            raise TypeError("Expected x to be one number, got an array: mix one input at a time.")
        if not -self.clip <= point <= self.clip:
            raise ValueError(f"Expected x within [-{self.clip:g}, {self.clip:g}], got x={x}.")
        cell, position = self.locate(point)
        steps = int(position * DITHER_STEPS + 0.5)
        left, right = self.weights[cell : cell + 2].astype(object)
        return (DITHER_STEPS - steps) * left + steps * right, DITHER_STEPS * self.denominator

    def vertex_input(self, vertex: int) -> float:
        """Return an input whose code has exactly this vertex's row as its distribution."""
        vertex = validate.whole("vertex", vertex, low=0, high=len(self.inputs) - 1)
        value = float(self.inputs[vertex])
        if value in self.inputs[vertex + 1 :]:  # the left limit of a jump: just below it
            return float(np.nextafter(value, -np.inf))
        return value

    @property
    def lattice(self) -> tuple[float, float] | None:
        """Return (first value, step) of evenly spaced values, whose sums decode; else None."""
        # Values that a mechanism computed in float64 are off by a few roundings of the largest.
        first, step = float(self.values[0]), float(self.values[-1] - self.values[0])
        step /= self.levels - 1
        even = first + step * np.arange(self.levels)
        tolerance = 8 * np.finfo(np.float64).eps * np.abs(self.values).max()
        return (first, step) if np.abs(even - self.values).max() <= tolerance else None


def _frozen(array: np.ndarray, kind: type) -> np.ndarray:
    # A copy backed by immutable bytes, which cannot be made writable again.
    copy = np.array(array, dtype=kind, order="C")
    return np.ndarray(copy.shape, kind, buffer=copy.tobytes())


def _integers(weights: np.ndarray) -> np.ndarray:
    try:
        array = np.asarray(weights)
    except ValueError:
        raise TypeError("Expected weights (V, m), got rows of uneven lengths.") from None
    if array.dtype == object:
        if not all(isinstance(w, int) and abs(w) <= MAX_DENOMINATOR for w in array.flat):
            raise ValueError("Expected integer weights of at most 2**62.")
    elif array.dtype.kind not in "iu":
        raise TypeError(f"Expected integer weights, got dtype {array.dtype}.")
    elif array.size and array.max() > MAX_DENOMINATOR:
        raise ValueError("Expected integer weights of at most 2**62.")
    return array


def _check(channel: Channel) -> None:
    inputs, values, weights = channel.inputs, channel.values, channel.weights
    denominator = channel.denominator
    if inputs.ndim != 1 or values.ndim != 1 or weights.shape != (inputs.size, values.size):
        raise ValueError(
            f"Expected inputs (V,), values (m,) and weights (V, m), got shapes "
            f"{inputs.shape}, {values.shape} and {weights.shape}."
        )
    if values.size < 2:
        raise ValueError(
            f"Expected levels >= 2, got levels={values.size}: a channel with one level sends "
            "nothing."
        )
    if not (np.isfinite(inputs).all() and np.isfinite(values).all()):
        numbers = np.concatenate([inputs, values])
        raise ValueError(
            f"Expected finite inputs and values, got {numbers[~np.isfinite(numbers)][0]}."
        )
    gaps = np.diff(inputs)
    if inputs.size < 2 or (gaps < 0).any() or inputs[0] != -inputs[-1] or inputs[-1] <= 0:
        raise ValueError("Expected inputs to rise from -clip to clip with clip > 0.")
    if inputs[-1] < 1 / MAX_MAGNITUDE or max(inputs[-1], np.abs(values).max()) > MAX_MAGNITUDE:
        raise ValueError(
            f"Expected clip and values within [1e-30, 1e30], got clip={inputs[-1]:g}: "
            "32-bit floats could overflow or underflow."
        )
    if ((gaps > 0) & (gaps < MIN_CELL_WIDTH * inputs[-1])).any():
        raise ValueError("Expected neighbouring inputs to be equal or at least clip/2**30 apart.")
    flat = np.flatnonzero(gaps == 0)
    if flat.size and (flat[0] == 0 or flat[-1] == gaps.size - 1 or (np.diff(flat) == 1).any()):
        raise ValueError(
            "Expected a repeated input (a jump) once and inside (-clip, clip): "
            "a jump at ±clip would have an outer limit that no input has."
        )
    if denominator < 1 or denominator > MAX_DENOMINATOR or denominator & (denominator - 1):
        raise ValueError(f"Expected denominator a power of two <= 2**62, got {denominator}.")
    if (weights < 0).any():
        raise ValueError(f"Expected weights >= 0, got {weights.min()}.")
    # Sums as Python integers: a hostile file could make int64 wrap around to the denominator.
    for vertex, row in enumerate(weights):
        total = int(row.astype(object).sum())
        if total != denominator:
            raise ValueError(
                f"Expected every row of weights to sum to {denominator}, row {vertex} has {total}."
            )


def _fingerprint(channel: Channel) -> bytes:
    digest = hashlib.sha256(b"randquant channel 1\0")
    header = (*channel.weights.shape, channel.denominator.bit_length())
    digest.update(np.array(header, dtype="<u8").tobytes())
    # Adding 0.0 turns -0.0 into 0.0: equal numbers must give equal fingerprints.
    digest.update((channel.inputs + 0.0).astype("<f8").tobytes())
    digest.update((channel.values + 0.0).astype("<f8").tobytes())
    digest.update(channel.weights.astype("<i8").tobytes())
    return digest.digest()[:16]


# From probabilities to integer weights: how a mechanism's table becomes a channel.

EVEN_SHARE = 2.0**-20
"""Share of codes that `with_even` draws evenly from all codes, by default. It costs a millionth of
the signal, and every code of up to 256 has at least 2**34 units of weight."""


def with_even(probabilities: np.ndarray, share: float = EVEN_SHARE) -> np.ndarray:
    """Mix rows with the even distribution over all codes.

    With EVEN_SHARE every weight over 2**62 is close to its probability, relatively, however rare
    the code was.

    Args:
        probabilities: (V, m), each row sums to 1.
        share: weight of the even distribution.

    Example:
        >>> rows = with_even(np.array([[1.0, 0.0]]))
        >>> float(rows[0, 1]) == EVEN_SHARE / 2
        True
    """
    return (1 - share) * probabilities + share / probabilities.shape[-1]


def from_probabilities(
    inputs: np.ndarray, values: np.ndarray, probabilities: np.ndarray
) -> Channel:
    """Compile a table of probabilities into a channel over 2**62.

    Args:
        inputs: (V,) float64, see Channel.
        values: (m,) float64.
        probabilities: (V, m) float64 >= 0; each row sums to 1 within 1e-12.

    Guarantees:
        A probability above zero keeps a weight of at least one unit: rounding never makes a
        code impossible. Each weight is within one unit (2**-62) of its probability, except that of
        the most likely code of a row, which absorbs the row's rounding.

    Raises:
        ValueError: a probability is negative or not finite, or a row does not sum to 1.
    """
    table = np.asarray(probabilities, dtype=np.float64)
    if not (np.isfinite(table).all() and (table >= 0).all()):
        raise ValueError("Expected probabilities >= 0, got a negative or non-finite one.")
    # A row that is off by more was not meant to be a distribution; rounding is far below this.
    worst = float(np.abs(table.sum(axis=-1) - 1).max())
    if worst > 1e-12:
        raise ValueError(f"Expected every row of probabilities to sum to 1, one is off by {worst}.")
    # theory/channel.md, Proposition 2: this rounding defines the mechanism; nothing is lost by it.
    weights = (table * float(MAX_DENOMINATOR)).astype(np.int64)
    weights = np.maximum(weights, table > 0)
    for row in weights:
        row[row.argmax()] += MAX_DENOMINATOR - int(row.astype(object).sum())
    return Channel(inputs, values, weights, MAX_DENOMINATOR)


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of one coordinate's decoded value, in closed form.

    Within a cell the row is linear in x, so the mean is linear and the other moments are piecewise
    quadratic; Simpson's rule on each piece is then the exact integral (`docs/theory/channel.md`).

    Attributes:
        bias_max: upper bound of |E[decoded] - x| over [-clip, clip], including the encoder's
            rounded dither (at most 2**-33 of a cell's range of means) and float64 rounding.
        variance: mean over x uniform on [-clip, clip] of Var[decoded | x].
        variance_max: the largest Var[decoded | x] over [-clip, clip], up to float64 rounding.
        mae: mean of E|decoded - x|, x uniform.
        mse: mean of E(decoded - x)^2, x uniform.

    The methods `bias_at` (E[decoded | x] - x), `variance_at`, `mae_at` and `mse_at` are these
    moments as functions of x: they take float64 of any shape within [-clip, clip] and return an
    array of that shape.
    """

    channel: Channel
    bias_max: float
    variance: float
    variance_max: float
    mae: float
    mse: float

    def bias_at(self, x: np.ndarray | float) -> np.ndarray:
        return _bias(self.channel, *_located(self.channel, x))

    def variance_at(self, x: np.ndarray | float) -> np.ndarray:
        return _variance(self.channel, *_located(self.channel, x))

    def mae_at(self, x: np.ndarray | float) -> np.ndarray:
        return _mae(self.channel, *_located(self.channel, x))

    def mse_at(self, x: np.ndarray | float) -> np.ndarray:
        return _mse(self.channel, *_located(self.channel, x))


def moments(channel: Channel) -> Moments:
    """Compute a channel's moments.

    Args:
        channel: the channel.

    Returns:
        Moments: numbers for x uniform on [-clip, clip], and functions of x.

    Guarantees:
        The averages are exact integrals up to float64 rounding, without sampling.

    Raises:
        TypeError: channel is not a Channel.

    Example:
        >>> import randquant as rq
        >>> m = rq.moments(rq.stochastic_rounding(clip=1.0, levels=2))
        >>> round(m.mse, 12), round(m.mae, 12), m.bias_max < 1e-9
        (0.666666666667, 0.666666666667, True)
    """
    validate.kind("channel", channel, Channel)
    means = channel.probabilities @ channel.values
    bias = np.abs(means - channel.inputs).max()
    dither = np.abs(np.diff(means)).max() / (2 * DITHER_STEPS)
    largest = np.abs(channel.values).max() + channel.clip
    rounding = (channel.levels + 8) * 2.0**-53 * largest
    average = {kind: _average(channel, kind) for kind in (_variance, _mae, _mse)}
    return Moments(
        channel=channel,
        bias_max=float(bias + dither + rounding),
        variance=average[_variance],
        variance_max=_largest_variance(channel),
        mae=average[_mae],
        mse=average[_mse],
    )


def _located(channel: Channel, x: np.ndarray | float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    points = validate.array("x", x)
    return points, *channel.locate(points)


def _row(channel: Channel, cell: np.ndarray, position: np.ndarray) -> np.ndarray:
    table, part = channel.probabilities, position[..., None]
    return (1 - part) * table[cell] + part * table[cell + 1]


def _errors(
    channel: Channel, x: np.ndarray, cell: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return _row(channel, cell, position), channel.values - x[..., None]


def _bias(channel, x, cell, position) -> np.ndarray:
    row, error = _errors(channel, x, cell, position)
    return (row * error).sum(axis=-1)


def _mae(channel, x, cell, position) -> np.ndarray:
    row, error = _errors(channel, x, cell, position)
    return (row * np.abs(error)).sum(axis=-1)


def _mse(channel, x, cell, position) -> np.ndarray:
    row, error = _errors(channel, x, cell, position)
    return (row * error**2).sum(axis=-1)


def _variance(channel, x, cell, position) -> np.ndarray:
    # Moments around x rather than around 0: the squared bias is small, so nothing cancels.
    return _mse(channel, x, cell, position) - _bias(channel, x, cell, position) ** 2


def _largest_variance(channel: Channel) -> float:
    # In each cell the variance is a concave parabola, largest at an end or at its apex.
    means = channel.probabilities @ channel.values
    centred = channel.values - means[:, None]
    ends = (channel.probabilities * centred**2).sum(axis=1)
    cells = np.diff(channel.inputs) > 0  # not the jumps, which contain no inputs
    a, b, curve = ends[:-1][cells], ends[1:][cells], np.diff(means)[cells] ** 2
    # a + t·(b - a) + t·(1 - t)·curve
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.clip(np.where(curve > 0, 0.5 + (b - a) / (2 * curve), 0), 0, 1)
    return float(np.max((1 - part) * a + part * b + part * (1 - part) * curve))


def _average(channel: Channel, moment) -> float:
    # The exact mean of a piecewise quadratic over [-clip, clip], piece by piece (Simpson).
    # theory/channel.md, Proposition 3: quadratic between neighbouring vertices and values.
    inner = channel.values[np.abs(channel.values) < channel.clip]
    points = np.unique(np.concatenate([channel.inputs, inner]))
    left, right = points[:-1], points[1:]
    middle = (left + right) / 2
    cell, _ = channel.locate(middle)
    start, width = channel.inputs[cell], channel.inputs[cell + 1] - channel.inputs[cell]

    def at(x: np.ndarray) -> np.ndarray:
        return moment(channel, x, cell, (x - start) / width)  # one-sided at a jump

    area = (right - left) * (at(left) + 4 * at(middle) + at(right)) / 6
    return float(area.sum() / (2 * channel.clip))

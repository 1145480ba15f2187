"""The worst Rényi divergence of a channel over all pairs of inputs, with the pair that shows it.

Rényi divergence is jointly quasi-convex and every row of a channel is a convex mix of two vertex
rows, so the worst pair is a pair of vertices: see `docs/theory/certificates.md`. A channel's JSON
file has its certificate, which is computed again when it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from randquant._internal import files, validate
from randquant._internal.files import write_json
from randquant._internal.formatting import round_up, to_json
from randquant.channels.channel import Channel
from randquant.privacy.divergence import UNIT, renyi
from randquant.privacy.guarantee import NEIGHBORINGS, Interval, Neighboring


@dataclass(frozen=True, slots=True)
class Certificate:
    """Privacy certificate of one coordinate: a bound for every pair of inputs in [-clip, clip].

    Attributes:
        order: Rényi order in (1, inf]; infinity is pure differential privacy.
        epsilon: the largest divergence over all ordered pairs of inputs lies in this interval,
            in nats, per coordinate and release.
        witness: (x, x'), a pair of inputs whose divergence is at least `epsilon.lower`.
        code: the code whose likelihood ratio at the witness is largest; when epsilon is
            infinite, x can send it and x' cannot.
        covers: `all pairs` of inputs, `pairs with zero`, or `this pair` alone (`certify_pair`).
        neighboring: the pairs of inputs that the adversary tries to distinguish.
        channel: the certified channel, for pictures; it is not compared or printed.
    """

    order: float
    epsilon: Interval
    witness: tuple[float, float]
    code: int
    covers: Literal["all pairs", "pairs with zero", "this pair"] = "all pairs"
    neighboring: Neighboring = "replace_one"
    channel: Channel | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        x, other = self.witness
        order = f"order {self.order}{', zero_out' * (self.neighboring == 'zero_out')}"
        if math.isinf(self.epsilon.upper):
            return (
                f"{order}: epsilon is infinite: x={x:g} can send code {self.code}, "
                f"x'={other:g} never does"
            )
        pair = "this pair only:" if self.covers == "this pair" else "worst pair"
        return (
            f"{order}: epsilon <= {round_up(self.epsilon.upper, 9)} per coordinate, "
            f"{pair} x={x:g}, x'={other:g}"
        )


def certify(
    channel: Channel, order: float = math.inf, neighboring: Neighboring = "replace_one"
) -> Certificate:
    """Certify a channel at one Rényi order, exactly, over all pairs of inputs.

    Args:
        channel: the channel.
        order: Rényi order in (1, inf]; infinity (the default) is pure differential privacy.
        neighboring: `replace_one`: any two inputs; `zero_out`: any input and 0, both ways.

    Returns:
        A Certificate; both one-sided limits of a jump are among the inputs it covers.

    Guarantees:
        No pair of inputs in [-clip, clip] has a divergence above epsilon.upper.
        The witness pair has a divergence of at least epsilon.lower.

    Raises:
        ValueError: order is not above 1.

    References:
        van Erven and Harremoës 2014, Theorem 13 (quasi-convexity); Mironov 2017 (Rényi
        differential privacy).

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> certificate = rq.certify(channel, order=8.0)
        >>> round(certificate.epsilon.upper, 8), sorted(map(abs, certificate.witness))
        (5.34422859, [1.4, 1.5])
    """
    validate.kind("channel", channel, Channel)
    order = validate.renyi_order(order)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    if neighboring == "zero_out":
        return _against_zero(channel, order)
    # theory/certificates.md, Proposition 1: pairs of vertices, in both orders, are enough.
    weights = channel.weights
    best = (-1.0, 0, 0)
    upper_bound = 0.0
    for vertex, row in enumerate(weights):
        lower, upper = renyi(row, weights, channel.denominator, order)
        other = int(lower.argmax())
        # The witness is chosen by its proven lower end, not by the upper bound's pair.
        best = max(best, (float(lower[other]), vertex, other), key=lambda candidate: candidate[0])
        upper_bound = max(upper_bound, float(upper.max()))
    lower_bound, vertex, other = best
    return Certificate(
        order=order,
        epsilon=Interval(lower_bound, upper_bound),
        witness=(channel.vertex_input(vertex), channel.vertex_input(other)),
        code=_loudest_code(weights[vertex], weights[other]),
        channel=channel,
    )


def _against_zero(channel: Channel, order: float) -> Certificate:
    zero, total = channel.mix(0.0)
    rows = channel.weights.astype(object) * (total // channel.denominator)
    # theory/accounting.md, Proposition 5: quasi-convex in one argument, so the other end is a
    # vertex. Rows are brought to the total of row 0 as Python integers: nothing is rounded.
    # Both directions, because either input may be the true one.
    pairs = [renyi(rows, zero, total, order), renyi(zero, rows, total, order)]
    lower, upper = (np.stack(side) for side in zip(*pairs, strict=True))
    swapped, vertex = (int(i) for i in np.unravel_index(int(lower.argmax()), lower.shape))
    witness = (channel.vertex_input(vertex), 0.0)
    code = _loudest_code(*((zero, rows[vertex]) if swapped else (rows[vertex], zero)))
    return Certificate(
        order,
        Interval(float(lower.max()), float(upper.max())),
        (witness[1], witness[0]) if swapped else witness,
        code,
        # The interval is of both directions together; the witness keeps its own.
        covers="pairs with zero",
        neighboring="zero_out",
        channel=channel,
    )


def certify_pair(channel: Channel, x: float, other: float, order: float = math.inf) -> Certificate:
    """Bound the divergence at one pair of inputs, the one that a paper assumes to be the worst.

    Args:
        channel: the channel.
        x, other: inputs in [-clip, clip]; at a jump the right limit is taken.
        order: Rényi order in (1, inf].

    Returns:
        A Certificate whose witness is (x, other). It covers that ordered pair only.

    Raises:
        ValueError: order is not above 1, or an input is outside [-clip, clip].

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> round(rq.certify_pair(channel, 1.5, -1.5, order=8.0).epsilon.upper, 8)
        5.31564235
    """
    validate.kind("channel", channel, Channel)
    order = validate.renyi_order(order)
    (p, p_total), (q, q_total) = channel.mix(x), channel.mix(other)
    # Over one total, exactly: at an input inside a cell a row's total is not the channel's.
    p, q = p * q_total, q * p_total
    lower, upper = renyi(p, q, p_total * q_total, order)
    # `renyi` rounds each end outward, so the divergence lies between them.
    epsilon = Interval(float(lower), float(upper))
    code = _loudest_code(p, q)
    pair = (float(x), float(other))
    return Certificate(order, epsilon, pair, code, covers="this pair", channel=channel)


def _loudest_code(p: np.ndarray, q: np.ndarray) -> int:
    # The code with the largest p/q, where p > 0.
    ratios = [
        # Python integers: ratios of weights beyond 2**53 are not to be compared as floats.
        (math.inf if b == 0 else int(a) / int(b)) if a > 0 else -1.0
        for a, b in zip(p, q, strict=True)
    ]
    return int(np.argmax(ratios))


# How fast the distribution of the code changes with the input: metric privacy, Fisher information.
#
# Derivations: `docs/theory/design.md` and `docs/theory/imvu.md`.

GEOMETRY_NAMES = ("l1", "l2", "fisher")


@dataclass(frozen=True, slots=True)
class MetricCertificate:
    """Metric privacy certificate of a channel: the rate at which its rows change with the input.

    Attributes:
        geometry: `l1`, `l2` or `fisher`: the distance that `epsilon` multiplies.
        epsilon: `l1`: log-likelihoods change by at most epsilon·|x - x'|/clip between any inputs.
            `l2`: by at most epsilon·(x - x')^2/clip^2 between any *vertices*; between other inputs
            nothing is said. `fisher`: the Fisher information about x/clip is at most epsilon.
        witness: inputs (x, x') between which it is attained; the same twice for `fisher`.
        covers: `all inputs` or `vertices`.
    """

    geometry: str
    epsilon: Interval
    witness: tuple[float, float]
    covers: str
    neighboring: Neighboring = "replace_one"

    def __str__(self) -> str:
        if math.isinf(self.epsilon.upper):
            return f"{self.geometry}: epsilon is infinite, at x={self.witness[0]:g}"
        what = {"l1": "|x - x'|/clip", "l2": "(x - x')^2/clip^2", "fisher": "Fisher information"}
        return (
            f"{self.geometry}: epsilon <= {round_up(self.epsilon.upper, 9)} "
            f"({what[self.geometry]}, {self.covers}), at x={self.witness[0]:g}"
        )


def fisher_information(channel: Channel) -> Interval:
    """Bound the largest Fisher information that a code carries about the input.

    Args:
        channel: the channel.

    Returns:
        An Interval that contains the supremum over x in (-clip, clip) of
        sum_i (dP_x(i)/dx)^2 / P_x(i), per squared unit of x; at a vertex both one-sided
        derivatives count. It is infinite at a jump, and where a code becomes impossible at a
        vertex without its probability levelling off.

    Guarantees:
        For all inputs, not for a sample: inside a cell the sum is convex in x, so the supremum is
        at the end of a cell. The row is taken as linear inside a cell; that the encoder rounds an
        input's position to 2**-32 of its cell is left out.

    Raises:
        TypeError: channel is not a Channel.

    References:
        Guo et al. 2022 (I-MVU), Definition 1.

    Example:
        >>> import randquant as rq
        >>> round(rq.fisher_information(rq.stochastic_rounding(1.0, levels=2, margin=1.0)).upper, 9)
        0.333333333
    """
    validate.kind("channel", channel, Channel)
    gaps = np.diff(channel.inputs)
    sums = _at_ends(channel, lambda change, row: (change**2 / row).sum(axis=-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        # theory/vector.md, Proposition 2: in a cell the sum is convex in x, so its ends are enough.
        information = np.where(sums == 0, 0.0, sums / (channel.denominator * gaps**2))
    return _rounding_interval(float(information.max()), channel)


def certify_metric(channel: Channel, geometry: str) -> MetricCertificate:
    """Certify how fast a channel's rows change with x, in units of x/clip.

    Args:
        channel: the channel.
        geometry: `l1`, `l2` or `fisher`: see MetricCertificate.

    Returns:
        A MetricCertificate; epsilon is infinite at a jump and where a code becomes impossible.

    Guarantees:
        The bound holds for the distribution at every x as the channel mixes it. (The encoder
        rounds an input's position in its cell to 2**-32 first: distances are those of the rounded
        inputs.)

    Raises:
        ValueError: geometry is unknown.

    References:
        Chaudhuri, Guo and Rabbat 2022 (MVU), metric privacy; Guo et al. 2022 (I-MVU), Definition 1.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=2.0)
        >>> [round(certify_metric(channel, g).epsilon.upper, 6) for g in ("l1", "fisher")]
        [0.5, 0.125]
    """
    validate.kind("channel", channel, Channel)
    validate.choice("geometry", geometry, GEOMETRY_NAMES)
    if geometry == "l2":
        return _between_vertices(channel)
    width = np.diff(channel.inputs) / channel.clip
    if geometry == "l1":
        # Within a cell the logarithm of a linear function changes fastest at its smaller end.
        loss = _at_ends(channel, lambda change, row: (np.abs(change) / row).max(axis=-1))
    else:
        loss = _at_ends(channel, lambda change, row: (change**2 / row).sum(axis=-1))
        width, loss = width**2, loss / channel.denominator
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(loss == 0, 0.0, loss / width)
    end, cell = (int(i) for i in np.unravel_index(int(loss.argmax()), loss.shape))
    x, other = float(channel.inputs[cell + end]), float(channel.inputs[cell + 1 - end])
    witness = (x, other) if geometry == "l1" else (x, x)
    return MetricCertificate(
        geometry, _rounding_interval(float(loss.max()), channel), witness, "all inputs"
    )


def _between_vertices(channel: Channel) -> MetricCertificate:
    best = (-1.0, 0.0, 0, 0)
    for vertex, row in enumerate(channel.weights):
        distance = np.abs(channel.inputs - channel.inputs[vertex]) / channel.clip
        lower, upper = renyi(row, channel.weights, channel.denominator, math.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = lower / distance**2, upper / distance**2
        low, high = (np.where(upper == 0, 0.0, side) for side in (low, high))
        other = int(high.argmax())
        best = max(best, (float(high[other]), float(low[other]), vertex, other))
    upper, lower, vertex, other = best
    witness = (float(channel.inputs[vertex]), float(channel.inputs[other]))
    # A distance is within 2 units, its square within 5, the quotient within 6: 8 cover it.
    epsilon = Interval(lower * (1 - 8 * UNIT), upper * (1 + 8 * UNIT))
    return MetricCertificate("l2", epsilon, witness, "vertices")


def _at_ends(channel: Channel, measure: Callable[[np.ndarray, np.ndarray], np.ndarray]):
    """Measure the change of rows at both ends of each cell.

    Args:
        channel: the channel.
        measure: of (change, row) of a cell, code by code; the row is 1 where nothing changes.

    Returns:
        (2, V-1)
    """
    weights = channel.weights
    change = np.diff(weights, axis=0)  # exact: within 2**62 either way
    still = change == 0
    moves = change.astype(np.float64)
    rows = (np.where(still, 1.0, row) for row in (weights[:-1], weights[1:]))
    with np.errstate(divide="ignore"):  # a code that changes from nothing: infinite
        return np.stack([measure(np.where(still, 0.0, moves), row) for row in rows])


def _rounding_interval(largest: float, channel: Channel) -> Interval:
    # The figure of a cell takes fewer than 16 roundings and `levels` additions.
    # A difference, row and width 1 unit each, squares, products and quotients: 10 of 16 units.
    error = (channel.levels + 16) * UNIT
    if math.isinf(largest):
        return Interval(math.inf, math.inf)
    return Interval(largest * (1 - error), largest * (1 + error))


FORMAT = "randquant channel, version 1"


def save_channel(
    path: str | Path, channel: Channel, certificate: Certificate | MetricCertificate | None = None
) -> None:
    """Write a channel and its certificate as JSON: exact integers, whole or not at all.

    Args:
        path: the file, replaced if it is there.
        channel: the channel.
        certificate: over all pairs of inputs; pure epsilon is certified unless given.

    Raises:
        ValueError: the certificate is of one pair only.
        OSError: the file cannot be written.

    Example:
        >>> import randquant as rq, tempfile
        >>> path = tempfile.mktemp(suffix=".json")
        >>> save_channel(path, rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42))
        >>> channel, certificate = load_channel(path)
        >>> channel.levels, round(certificate.epsilon.upper, 5)
        (16, 5.46989)
    """
    write_json(validate.path("path", path), channel_record(channel, certificate))


def load_channel(path: str | Path) -> tuple[Channel, Certificate | MetricCertificate]:
    """Read a channel, certify it again, and refuse it where the file says otherwise.

    Args:
        path: a file that `save_channel` wrote.

    Returns:
        (channel, certificate), the certificate computed from the channel that was read.

    Raises:
        ValueError: the file holds no channel, or its fingerprint or certificate does not belong to
            its integers: the file was damaged or changed.
        OSError: the file cannot be read.
    """
    try:
        record = json.loads(files.read_text(validate.path("path", path), "a channel"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected a channel file at {path}, but: {error}.") from error
    return channel_from_record(record, f"file at {path}")


def channel_record(
    channel: Channel, certificate: Certificate | MetricCertificate | None = None
) -> dict[str, Any]:
    """Return a channel and its certificate as JSON data, for files and messages.

    Args:
        channel, certificate: see `save_channel`.
    """
    validate.kind("channel", channel, Channel)
    certificate = certify(channel) if certificate is None else certificate
    wanted = "what certify or certify_metric returns"
    validate.answers("certificate", certificate, wanted, "covers", "epsilon")
    if certificate.covers == "this pair":
        raise ValueError(
            f"Expected a certificate over all pairs of inputs, but it covers {certificate.witness} "
            "only: certify the channel with `certify`."
        )
    if isinstance(certificate, MetricCertificate):
        claim = {"geometry": certificate.geometry}
    else:
        claim = {"order": certificate.order}
    record = {
        "format": FORMAT,
        "inputs": channel.inputs.tolist(),
        "values": channel.values.tolist(),
        "weights": channel.weights.tolist(),
        "denominator": channel.denominator,
        "fingerprint": channel.fingerprint.hex(),
        "certificate": {**claim, "epsilon": certificate.epsilon},
    }
    return to_json(record)


def channel_from_record(
    record: Any, where: str, admit: Callable[[Channel], None] = lambda channel: None
) -> tuple[Channel, Certificate | MetricCertificate]:
    """Read a channel from JSON data and certify it again; the inverse of `channel_record`.

    Args:
        record: the data, from an untrusted source.
        where: names the source in errors.
        admit: may refuse the channel with a ValueError before the work of certifying it begins.

    Raises:
        ValueError: see `load_channel`.
    """
    try:
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {validate.shown(record['format'])}")
        # Lists of anything but numbers could become arrays of text, and take any amount of memory.
        inputs, values = _numbers(record["inputs"]), _numbers(record["values"])
        weights: Any = [_numbers(row) for row in record["weights"]]
        channel = Channel(inputs, values, weights, record["denominator"])
        admit(channel)
        claim = record["certificate"]
        claimed = Interval(*(float(claim["epsilon"][end]) for end in ("lower", "upper")))
        certificate = _certified(channel, claim)
        fingerprint = record["fingerprint"]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"Expected a channel {where}, but: {reason}.") from error
    # The certificate that counts is the one computed here: a file cannot claim a better one. What
    # it states must agree, so that an edited file is noticed.
    if channel.fingerprint.hex() != fingerprint:
        raise ValueError(
            f"Expected the channel {where} to have the fingerprint {validate.shown(fingerprint)} "
            f"as it says, got {channel.fingerprint.hex()}: it was changed; design or save the "
            "channel again."
        )
    certified = certificate.epsilon
    if not (claimed.lower <= certified.upper and certified.lower <= claimed.upper):
        raise ValueError(
            f"Expected the channel {where} to be certified at epsilon "
            f"{_printed(claimed.upper)} as it says, got {_printed(certified.upper)}: it was "
            "changed; design or save the channel again."
        )
    return channel, certificate


def _printed(epsilon: float) -> str:
    return "no finite one" if math.isinf(epsilon) else round_up(epsilon, 9)


def _numbers(row: Any) -> Any:
    if not (isinstance(row, list) and all(type(number) in (int, float) for number in row)):
        raise ValueError("its inputs, values and weights are not lists of numbers")
    return row


def _certified(channel: Channel, claim: dict[str, Any]) -> Certificate | MetricCertificate:
    if "geometry" in claim:
        return certify_metric(channel, claim["geometry"])
    return certify(channel, math.inf if claim["order"] == "inf" else float(claim["order"]))

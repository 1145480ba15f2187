"""How many coordinates to send: the fewest whose error is near that of sending all.

Derivation: `docs/theory/subsets.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from randquant.planning.plan.record import Candidate, Need

DIVISORS = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""What parts of the rotated coordinates are tried."""

TOLERATED = 1.05
"""Error of what is sent, at most, over that of all coordinates: an error that is 5 % larger costs
about as much accuracy as 5 % less epsilon."""

FARTHEST = 1.5
"""Where the table ends: beyond this error, fewer coordinates are of no use."""


def parts(
    need: Need, name: str, least: float, calibrated: Callable[[str, Need], Candidate]
) -> Iterator[Candidate]:
    """A mechanism that sends fewer and fewer coordinates, each calibrated to the same target.

    Args:
        need: the target; its `mean_norm` is assumed.
        name: the mechanism. Where it cannot send all coordinates it may send fewer: integer noise
            on fewer of them takes fewer bits of a code.
        least: deviation of the best mechanism that sends all coordinates.
        calibrated: calibrates a mechanism, by its name.
    """
    if need.mean_norm is None:
        return
    for divisor in DIVISORS:
        count = need.setting.size // divisor
        if not count:
            return
        part = calibrated(name, need.sending(count))
        if part.noise is None:
            continue
        if part.noise.deviation > FARTHEST * least:
            return
        yield part


def knee(whole: Candidate, smaller: list[Candidate]) -> Candidate:
    """The one with the smallest upload whose error is within TOLERATED of that of all coordinates.

    Example:
        >>> from randquant.planning.plan.record import DecodedError
        >>> def sending(count, error):
        ...     noise = DecodedError(error, None, 0.0, 0.0)
        ...     return Candidate("a", {}, noise=noise, bytes_up=count, coordinates=count)
        >>> whole = sending(100, 1.0)
        >>> knee(whole, [sending(50, 1.01), sending(10, 1.04), sending(5, 1.2)]).bytes_up
        10
    """
    assert whole.noise is not None
    most = TOLERATED * whole.noise.deviation
    near = [part for part in smaller if part.noise is not None and part.noise.deviation <= most]
    return min([whole, *near], key=lambda part: part.bytes_up)

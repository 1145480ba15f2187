"""The mechanisms of the papers, each a constructor from parameters to a Channel.

A mechanism joins every command, table and contract test by its line in `MECHANISMS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from randquant import _validate
from randquant.channel import Channel
from randquant.mechanisms.designed import channel_file, optimal
from randquant.mechanisms.imvu import imvu, imvu_fisher
from randquant.mechanisms.mvu import mvu
from randquant.mechanisms.pbm import pbm
from randquant.mechanisms.qmgeo import qmgeo
from randquant.mechanisms.rqm import rqm, stochastic_rounding
from randquant.mechanisms.two_bins import erm, two_bins

MECHANISMS: dict[str, Callable[..., Channel]] = {
    "rqm": rqm,
    "pbm": pbm,
    "erm": erm,
    "qmgeo": qmgeo,
    "mvu": mvu,
    "imvu": imvu,
    "optimal": optimal,
    "channel-file": channel_file,
    "stochastic-rounding": stochastic_rounding,
}
"""Constructor of every channel mechanism, by the name that commands and records use."""


def build(name: str, parameters: Mapping[str, Any]) -> Channel:
    """Build a mechanism's channel from its name and parameters.

    Raises:
        ValueError: the name is unknown, or a parameter is missing, unknown or out of bounds.

    Example:
        >>> build("pbm", {"clip": 1.0, "theta": 0.25, "trials": 15}).levels
        16
    """
    return _validate.call(
        name, MECHANISMS[_validate.choice("mechanism", name, MECHANISMS)], parameters
    )


__all__ = [
    "MECHANISMS",
    "build",
    "erm",
    "imvu",
    "imvu_fisher",
    "mvu",
    "pbm",
    "qmgeo",
    "rqm",
    "stochastic_rounding",
    "two_bins",
]

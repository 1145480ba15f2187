"""The mechanisms of the papers, each a constructor from parameters to a Channel.

A mechanism joins every command, table and contract test by its line in `MECHANISMS`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from randquant import _validate
from randquant.channel import Channel
from randquant.mechanisms.designed import channel_file, optimal
from randquant.mechanisms.imvu import imvu, imvu_fisher
from randquant.mechanisms.mvu import mvu
from randquant.mechanisms.noise import NOISES
from randquant.mechanisms.optm import optm
from randquant.mechanisms.pbm import pbm
from randquant.mechanisms.qmgeo import qmgeo
from randquant.mechanisms.rqm import rqm, stochastic_rounding
from randquant.mechanisms.two_bins import erm, two_bins

MECHANISMS: dict[str, Callable[..., Channel]] = {
    "rqm": rqm,
    "pbm": pbm,
    "erm": erm,
    "optm": optm,
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


RESERVED = ("clipped-sgd", "gaussian", "local-gaussian", "sign-sgd", *NOISES)
"""Names of mechanisms for whole updates, which are no channels."""


def register(name: str, constructor: Callable[..., Channel]) -> None:
    """Add a mechanism: every command, table and plot of this process then knows it.

    Args:
        name: lower-case letters, digits and hyphens; not yet taken.
        constructor: takes `clip` and other parameters by name, returns a Channel and raises
            ValueError where there is none. Annotate its parameters with `int` or `float`, and call
            the number of codes `levels`: then commands read them, and `randquant compare`
            searches one or two `float` parameters for a target epsilon.

    Raises:
        ValueError: the name is taken or malformed, or the constructor takes no `clip`.

    References:
        `docs/own-mechanism.md`, a whole example.

    Example:
        >>> register("wide-rounding", lambda clip, levels: stochastic_rounding(clip, levels, clip))
        >>> build("wide-rounding", {"clip": 1.0, "levels": 2}).levels
        2
        >>> del MECHANISMS["wide-rounding"]
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ValueError(
            f"Expected a name of lower-case letters, digits and hyphens, got {name!r}."
        )
    if name in MECHANISMS or name in RESERVED:
        raise ValueError(f"Expected a name that is not taken, got {name!r}: choose another.")
    parameters = inspect.signature(constructor).parameters.values()
    by_name = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)
    if not by_name or "clip" not in {parameter.name for parameter in parameters}:
        raise ValueError(
            f"Expected the constructor of {name} to take clip and its other parameters by name."
        )
    MECHANISMS[name] = constructor


__all__ = [
    "MECHANISMS",
    "build",
    "erm",
    "imvu",
    "imvu_fisher",
    "mvu",
    "optm",
    "pbm",
    "qmgeo",
    "register",
    "rqm",
    "stochastic_rounding",
    "two_bins",
]

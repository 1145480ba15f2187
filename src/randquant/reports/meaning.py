"""What a guarantee means, in the words of every page that shows one."""

from __future__ import annotations

import math

from randquant._internal import formatting
from randquant._internal.formatting import minus
from randquant._internal.rounding import round_down
from randquant.privacy.guarantee import Guarantee

LARGE_EPSILON = 20.0  # nats; above it the page says that the total by itself hides nothing

_OBSERVERS = {
    "local": "a server that sees every code",
    "aggregate": "a server that sees only sums of a cohort's codes",
    "central": "someone who sees the models that the trusted server publishes",
    "model": "someone who sees the published models, and nothing else of the run,",
}


def observer(guarantee: Guarantee) -> str:
    """Whom it holds against."""
    trust = guarantee.trust
    return _OBSERVERS.get(trust, f"an observer under {trust} trust")


def promise(guarantee: Guarantee) -> str:
    """What a finite guarantee promises, to whom, against whom."""
    slack = f", plus at most δ = {minus(formatting.plain(guarantee.delta))}" * (guarantee.delta > 0)
    other = "anything else it could have sent"
    if guarantee.neighboring == "zero_out":
        other = "what it sends for updates of zeros, or the other way round"
    what = f"Replace everything that one client sends in the run by {other}."
    if guarantee.unit == "example":
        what = "Replace one example of one client by another."
        if guarantee.neighboring == "zero_out":
            what = "Replace the gradient of one example of one client by zeros."
    return (
        f"{what} The probability of anything that {observer(guarantee)} can conclude is then at "
        f"most e^ε times what it was{slack}. Here {formatting.bound(guarantee.epsilon)}: proven, "
        "and rounded up."
    )


def hostile(line: str) -> list[tuple[str, str]]:
    """How far one client can move a mean, by `one_client`; nothing if no bound is known."""
    return (
        [("What one client can do to the mean.", f"{line[0].upper()}{line[1:]}.")] if line else []
    )


def size(guarantee: Guarantee) -> list[tuple[str, str]]:
    """How large a finite guarantee is, and how much smaller it could have been proven."""
    return [("How large it is.", _size(guarantee)), *_tight(guarantee)]


def _size(guarantee: Guarantee) -> str:
    if guarantee.epsilon <= LARGE_EPSILON:
        return "By common usage a total of at most 1 is strong and one of at most 10 is moderate."
    return (
        f"The total is printed as it is. Above {LARGE_EPSILON:g} nats it does not by itself hide "
        f"a client's update from {observer(guarantee)}. What it does mean: no attack passes this "
        "ceiling, with the slack δ, in the worst case over all clients and for an observer who "
        "knows everything else; the true loss may be smaller, but that is not promised. A small "
        "total takes updates clipped as a whole in L2, and only their noisy sum shown to the "
        "server."
    )


def _tight(guarantee: Guarantee) -> list[tuple[str, str]]:
    """The lower end of a guarantee, if one is known."""
    if not 0 < guarantee.lower < math.inf:
        return []
    text = (
        f"No accountant can prove less than {round_down(guarantee.lower, grouped=True)} for this "
        "run: two updates that are easy to tell apart lose that much. So the bound is at most the "
        "difference too high."
    )
    return [("How tight it is.", text)]

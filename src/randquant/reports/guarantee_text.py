"""Sentences and sections on what a guarantee means, the same on all pages that show one."""

from __future__ import annotations

import math

from randquant._internal import formatting
from randquant._internal.formatting import minus
from randquant.privacy.guarantee import Guarantee
from randquant.reports.pages import Paragraphs, Section

LARGE_EPSILON = 20.0
"""Total in nats above which a page says that it does not hide an update by itself: e^20 is 5e8, so
the bound then excludes next to no conclusion."""

_OBSERVERS = {
    "local": "a server that sees every code",
    "aggregate": "a server that sees only sums of a cohort's codes",
    "central": "someone who sees the models that the trusted server publishes",
    "model": "someone who sees the published models, and nothing else of the run,",
}


def observer(guarantee: Guarantee) -> str:
    """Describe the adversary that a guarantee holds against."""
    trust = guarantee.trust
    return _OBSERVERS.get(trust, f"an observer under {trust} trust")


def promise(guarantee: Guarantee) -> str:
    """Describe what a finite guarantee promises, to whom, and against whom."""
    # In terms of probabilities of conclusions: "e^ε" is meaningless without what may be replaced.
    slack = f", plus at most δ = {minus(formatting.plain(guarantee.delta))}" * (guarantee.delta > 0)
    change = "Replace all data of one client, and so every update that it encodes, by any other."
    if guarantee.neighboring == "zero_out":
        change = "Replace all updates that one client encodes by zeros, or the other way round."
    if guarantee.unit == "example":
        change = "Replace one example of one client by another."
        if guarantee.neighboring == "zero_out":
            change = "Replace the gradient of one example of one client by zeros."
    return (
        f"{change} The probability of anything that {observer(guarantee)} can conclude is then at "
        f"most e^ε times what it was{slack}. Here {formatting.bound(guarantee.epsilon)}: proven, "
        "and rounded up."
    )


def other_figure(other: Guarantee | None) -> list[str]:
    """Return a card's line on the guarantee under the other neighbouring relation, if any."""
    if other is None:
        return []
    change = "left out (zero out)" if other.neighboring == "zero_out" else "replaced (replace one)"
    return [f"{formatting.bound(other.epsilon)} if one {other.unit} is {change}"]


def comparison(stated: Guarantee, other: Guarantee | None) -> list[tuple[str, str]]:
    """Return a paragraph on which figure to compare with others', if both are known."""
    if other is None:
        return []
    replaced, left_out = (stated, other)[:: 1 if other.neighboring == "zero_out" else -1]
    text = (
        f"Compare what others state for adding or removing one {stated.unit} with "
        f"{formatting.bound(left_out.epsilon)}: its contribution is exchanged for zeros, while the "
        "numbers of clients and examples stay. Compare what they state for replacing one with "
        f"{formatting.bound(replaced.epsilon)}. Both hold of this one run, at the same δ."
    )
    return [("How to compare it with other figures.", text)]


def coverage(guarantee: Guarantee | None, covered: str, not_covered: str) -> Section:
    return _coverage(covered_by(guarantee, covered), not_covered)


def covered_by(guarantee: Guarantee | None, covered: str) -> str:
    """Return what a guarantee covers: nothing without a finite epsilon."""
    finite = guarantee is not None and math.isfinite(guarantee.epsilon)
    return covered if finite else "Nothing: no finite ε is proven."


def coverage_without_data(covered: str, not_covered: str) -> Section:
    # For a page that shows no client's data.
    return _coverage(f"{covered} The page is computed without anybody's data.", not_covered)


def _coverage(covered: str, not_covered: str) -> Section:
    text = Paragraphs([("Covered.", covered), ("Not covered.", not_covered)])
    return Section("What is covered, what is not", [text], columns=False, text=True)


def coverage_of_codes() -> Section:
    # For a page on one coordinate's code, which shows no run.
    return coverage_without_data(
        "One coordinate's code in one round, for any two inputs within the clipping threshold.",
        "A whole update and a whole run, whose epsilon is larger: rq.account and a run's own page "
        "have it. Parameters that were chosen by looking at clients' data.",
    )


def hostile(line: str) -> list[tuple[str, str]]:
    # `line` is that of `describe_influence`, which may be empty.
    if not line:
        return []
    return [("What one client can do to the mean.", f"{line[0].upper()}{line[1:]}.")]


def size(guarantee: Guarantee) -> list[tuple[str, str]]:
    """Return a paragraph on the size of a finite guarantee."""
    text = "By common usage a total of at most 1 is strong and one of at most 10 is moderate."
    if guarantee.epsilon > LARGE_EPSILON:
        text = (
            f"The total is printed as it is. Above {LARGE_EPSILON:g} nats it does not by itself "
            f"hide a client's update from {observer(guarantee)}. What it does mean: no attack "
            "passes this ceiling, with the slack δ, in the worst case over all clients and for an "
            "observer who knows everything else; the true loss may be smaller, but that is not "
            "promised. A small total takes updates clipped as a whole in L2, and only their noisy "
            "sum shown to the server."
        )
    return [("How large it is.", text)]

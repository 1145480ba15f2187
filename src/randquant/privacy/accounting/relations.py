"""One run's guarantee under both neighbouring relations, from the same declared releases.

Libraries that add noise to sums mostly state epsilon for adding or removing a client: whether it
contributes, or zeros in its place. That is `zero_out`; `replace_one` asks for more of the same
noise, so its epsilon is larger. Which to compare with whose: `docs/guarantees.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from randquant._internal.formatting import round_up
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import Guarantee, Neighboring


def other_relation(neighboring: Neighboring) -> Neighboring:
    return "zero_out" if neighboring == "replace_one" else "replace_one"


def under_other_relation(
    stated: Guarantee | None,
    released: Callable[[Neighboring], Release | Sequence[Release] | None],
    before: Callable[[Neighboring], Guarantee | None] | None = None,
    *,
    quick: bool = False,
) -> Guarantee | None:
    """Account for what a guarantee covers under the relation that it is not for.

    Args:
        stated: the guarantee of a run, a plan or a table; None without privacy.
        released: what it covers, as one or more releases between neighbours of a relation.
        before: what was spent before under a relation, which `stated` counts too; None if nothing.
        quick: as in `account`.

    Returns:
        The guarantee at the same delta, against the same adversary; None if there is none, or if
        the release, or what was spent, is not derived for that relation.

    Example:
        >>> from randquant.privacy.accounting.releases import GaussianRelease
        >>> noise = {"replace_one": 1.0, "zero_out": 2.0}  # in units of neighbours' distance
        >>> def released(relation):
        ...     return GaussianRelease(noise[relation], 5, 1, neighboring=relation)
        >>> print(stated := account([released("replace_one")], 1e-5))
        epsilon <= 4.37718 at delta = 1e-05 (replace_one, central trust)
        >>> print(under_other_relation(stated, released))
        epsilon <= 1.9931 at delta = 1e-05 (zero_out, central trust)
    """
    if stated is None or math.isinf(stated.epsilon):
        return None
    relation = other_relation(stated.neighboring)
    try:
        releases = released(relation)
        spent = None if before is None else before(relation)
        left = stated.delta if spent is None else spent.remaining(math.inf, stated.delta)[1]
        if releases is None or (before is not None and spent is None):
            return None
        listed = releases if isinstance(releases, Sequence) else [releases]
        # theory/accounting.md, Proposition 8: both relations hold of the declared releases at
        # once; Proposition 9 adds what was spent before.
        total = account(listed, left, quick=quick)
        total = total if spent is None else total + spent
    except (ValueError, TypeError, ArithmeticError, AssertionError, NotImplementedError):
        # No distance is derived for this relation; a mechanism of somebody's own may say so in
        # another way than ours, and a run that has ended must not fail for a second figure.
        return None
    # Such a mechanism may also know one relation only, whatever it is asked for.
    stands = total.neighboring == relation and math.isfinite(total.epsilon)
    if not stands or (total.trust, total.unit) != (stated.trust, stated.unit):
        return None
    return replace(total, delta=stated.delta, simulated=stated.simulated)


def by_relation(*guarantees: Guarantee | None) -> Mapping[Neighboring, Guarantee]:
    """Return the guarantees there are by their neighbouring relations."""
    return {each.neighboring: each for each in guarantees if each is not None}


def other_relation_lines(other: Guarantee | None) -> Iterable[str]:
    """Return the line that stands below a guarantee: of the same under the other relation, if any.

    Example:
        >>> print(*other_relation_lines(Guarantee(1.5, 1e-5, "zero_out", "aggregate", 9.0, 3)))
        if one client is left out (counts as zeros) instead of replaced: epsilon <= 1.5 at delta = \
1e-05 (zero_out, aggregate trust)
    """
    if other is None:
        return []
    changes = {
        "zero_out": "is left out (counts as zeros) instead of replaced",
        "replace_one": "is replaced instead of left out (counted as zeros)",
    }
    return [f"if one {other.unit} {changes[other.neighboring]}: {other}"]


def in_short(other: Guarantee | None) -> str:
    """Return the same in parentheses, to stand behind a figure within a line; "" if there is none.

    Example:
        >>> print(f"epsilon <= 3.1{in_short(Guarantee(1.5, 1e-5, 'zero_out', 'local', 9.0, 3))}")
        epsilon <= 3.1 (<= 1.5 under zero_out)
    """
    if other is None:
        return ""
    return f" (<= {round_up(other.epsilon)} under {other.neighboring})"


def in_one_line(stated: Guarantee, other: Guarantee | None) -> str:
    """Return a guarantee with its figure under the other relation, if any.

    Example:
        >>> stated, other = (Guarantee(epsilon, 1e-5, relation, "local", 9.0, 3)
        ...                  for epsilon, relation in ((3.5, "replace_one"), (1.5, "zero_out")))
        >>> print(in_one_line(stated, other))
        epsilon <= 3.5 (<= 1.5 under zero_out) at delta = 1e-05 (replace_one, local trust)
    """
    bound, at, rest = str(stated).partition(" at delta")
    return f"{bound}{in_short(other)}{at}{rest}"

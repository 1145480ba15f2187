"""What the certificate of a sum prints, and what it reports while it is made."""

import math
from fractions import Fraction

import pytest

import randquant as rq
from randquant._internal.progress import reporting

BIT = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)


@pytest.mark.parametrize("clients", [1, 4, 5])
def test_printed_ends_are_rounded_outward_and_inputs_are_named(clients):
    """Between rows (3, 1)/4 and (1, 3)/4, which order 2 tells apart by log(7/3) alone."""
    found = rq.certify_sum(BIT, clients, 2.0)
    words = str(found).split()
    upper, lower = words[4], words[-5 if clients == 1 else -7].rstrip(":")
    assert len(upper.removeprefix("0.")) == 9
    assert 0 <= Fraction(upper) - Fraction(found.epsilon.upper) < Fraction(1, 10**9)
    assert 0 <= Fraction(found.epsilon.lower) - Fraction(lower) < Fraction(1, 10**5)
    assert f"sum of {clients} ({found.method}); >= " in str(found)
    assert "x=-1, x'=1" in str(found) or "x=1, x'=-1" in str(found)
    around = {1: "others none", 4: "others 3 at -1", 5: "others 4 at -1"}[clients]
    assert str(found).endswith((around, around.replace("-1", "1")))
    if clients == 1:
        assert found.epsilon.upper == pytest.approx(math.log(7 / 3), rel=1e-12, abs=0)


def test_who_waits_is_told_what_is_done():
    channel, seen = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0625), []
    with reporting(lambda *step: seen.append(step)):
        rq.certify_sum(channel, 2000, 2.0)
    assert seen[0] == ("the strongest attack", 0, 0)
    assert [step for step in seen if step[2] == 0][1:] in (
        [], [("what all codes have in common", 0, 0)]
    )  # fmt: skip

"""Amplification by sampling: against dp-accounting, where it has a formula, and Wang et al."""

import math
import re
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

import randquant as rq
from randquant._internal import round_up
from randquant.privacy import Sampled, amplified

REPLACE_SPECIAL = dpa.NeighboringRelation.REPLACE_SPECIAL
REPLACE_ONE = dpa.NeighboringRelation.REPLACE_ONE
THEORY = (Path(__file__).parents[2] / "docs" / "theory" / "sampling.md").read_text()


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.001, 1.0), (0.02, 0.8), (0.2, 4.0), (0.6, 1.0), (0.99, 2.0)]
)
def test_general_amplification_equals_the_gaussian_one_at_whole_orders(rate, noise):
    """Their formula is for Gaussian noise alone; the general bound meets it from above."""
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    orders = [2, 3, 8, 20]
    theirs = RdpAccountant(orders, REPLACE_SPECIAL).compose(event)._rdp
    release = rq.GaussianRelease(noise, dimension=1, rounds=1, neighboring="zero_out")
    ours = np.array([Sampled(release, rate, rounds=1).renyi(order) for order in orders])
    assert (ours >= theirs * (1 - 1e-12)).all()
    assert (ours <= theirs * 1.03).all()


def theorem_9(curve, rate, order):
    """Wang, Balle and Kasiviswanathan 2019, where pure privacy says nothing."""
    excess = math.comb(order, 2) * rate**2
    excess *= min(4 * math.expm1(curve(2)), 2 * math.exp(curve(2)))
    for j in range(3, order + 1):
        excess += 2 * rate**j * math.comb(order, j) * math.exp((j - 1) * curve(j))
    return math.log1p(excess) / (order - 1)


def test_the_table_of_the_theory_is_what_is_computed():
    rows = re.findall(r"^\| (\d) \| ([\d.]+) \| (\d+) \| (.*) \|$", THEORY, flags=re.MULTILINE)
    assert len(rows) == 5
    for noise, rate, order, figures in rows:
        noise, rate, order = float(noise), float(rate), int(order)

        def gaussian(order, noise=noise):
            return order / (2 * noise**2)

        event = dpa.GaussianDpEvent(noise)
        event = dpa.SampledWithoutReplacementDpEvent(1000, round(1000 * rate), event)
        theirs = RdpAccountant([order], REPLACE_ONE).compose(event)
        ours = amplified(gaussian, rate, order, "replace_one")
        others = (theorem_9(gaussian, rate, order), float(theirs._rdp[0]))
        assert ours < min(others)
        shown = [round_up(ours, 4), *(f"{other:.4g}" for other in others)]
        assert figures == " | ".join(shown)

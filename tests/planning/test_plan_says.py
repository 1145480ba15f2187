"""What a plan says of more bits and of more clients a round, and how it clips one bit."""

import math
import re

import pytest

from randquant.planning.limits import one_bit_excess
from randquant.planning.plan.planner import plan
from randquant.reports.plan import as_text

SIZE = 1024
ONE = ["stochastic-rounding"]


@pytest.mark.parametrize(
    ("population", "epsilon", "deviations"),
    [(200, 8.0, 3), (1000, 8.0, 3), (200, 0.5, 4)],
)
def test_what_more_bits_and_more_clients_could_win(population, epsilon, deviations):
    found = plan(650, population, 200, 50, epsilon, 1e-5, mechanisms=ONE)
    text = "\n".join(as_text(found))
    excess = one_bit_excess(SIZE, 200, found.need.multiplier)
    stated = re.search(r"about ([\d.]+) % more noise than Gaussian noise would", text)
    assert stated is not None
    assert float(stated[1]) == pytest.approx(100 * excess / 2, rel=0.1, abs=0)
    assert ("noise correlated over w rounds could give no more" in text) == (population > 200)
    # Theory/plan.md: near levels win by less clipping range what rare clipping costs.
    parameters = found.entries[0].parameters
    assert parameters["clip"] == pytest.approx(
        deviations * found.need.clip_norm / math.sqrt(SIZE), rel=1e-3, abs=0
    )
    assert (1 + parameters["margin"] / parameters["clip"] < 7) == (deviations == 3)

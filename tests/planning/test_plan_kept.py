"""What noise leaves of a round's sure decrease: theory/plan.md, Proposition 1."""

import functools
import math
import re

import numpy as np
import pytest

from randquant.planning.plan.planner import plan
from randquant.planning.plan.record import DecodedError, Need, kept_of
from randquant.planning.privacy import Privacy

MEAN, CLIP = 0.0712, 1.4


@functools.cache
def planned(mean_norm):
    return plan(
        3840, 1014, 1014, 4, 8.0, 1e-5, privacy=Privacy(bits=1, clip_norm=CLIP),
        mechanisms=["stochastic-rounding"], mean_norm=mean_norm,
    )  # fmt: skip


@pytest.mark.parametrize("alike", [True, False])
def test_the_proposition_on_a_quadratic(alike):
    """f(x) = Σ sizes·x²/2 + slope·x from 0, noise averaged by formula."""
    sizes = np.full(6, 4.0) if alike else np.array([4.0, 4.0, 1.0, 0.1, 0.0, -0.3])
    slope, deviation, clip_norm = np.array([1.0, -2.0, 0.5, 0, 1.0, 0]), 0.7, 3.0
    need = Need(6, 10, 10, 1, 1.0, 1e-5, "aggregate", Privacy(bits=1, clip_norm=clip_norm), 1,
                mean_norm=float(np.linalg.norm(slope)))  # fmt: skip
    length = deviation * math.sqrt(6) / clip_norm
    kept = kept_of(need.times_mean(DecodedError(deviation, None, length, length)))
    step = kept / sizes.max()
    squares = slope**2 @ sizes + deviation**2 * sizes.sum()
    found, sure = step * slope @ slope - step**2 * squares / 2, step * slope @ slope / 2
    assert found == pytest.approx(sure) if alike else found > sure


@pytest.mark.seldom
def test_what_is_kept_is_said():
    found = planned(MEAN)
    ratio = found.recommended.noise.length * CLIP / MEAN
    (said,) = [each for each in found.advice if each.startswith("Of means of norm 0.0712")]
    assert f"the noise is {ratio:.3g} times as long" in said
    assert f"keeps {100 / (1 + ratio**2):.2g} % of the decrease" in said
    assert found.kept == pytest.approx(1 / (1 + ratio**2))
    clients = int(re.search(r"about ([\d,]+) clients", said)[1].replace(",", ""))
    assert clients == math.ceil(3 * ratio * 1014)


@pytest.mark.parametrize("mean_norm", [None, 0.0])
def test_without_a_length_of_means_nothing_is_said_to_be_kept(mean_norm):
    found = planned(mean_norm)
    assert found.kept is None
    assert not any(each.startswith("Of means") for each in found.advice)

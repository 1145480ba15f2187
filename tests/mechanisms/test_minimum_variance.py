import math

import pytest

import randquant as rq


def summed_variance(channel):
    return rq.moments(channel).variance_at(channel.inputs).sum()


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.slow
def test_two_inputs_reach_the_closed_form(epsilon):
    # On inputs ±1 the summed variance is at least 2/sinh(epsilon/2)^2: docs/theory/imvu.md.
    for levels in (2, 4):
        channel = rq.mvu(1.0, levels, epsilon, inputs=2)
        closed = 2 / math.sinh(epsilon / 2) ** 2
        # The search keeps the outermost levels a share of 2e-6 beyond the least that is feasible.
        outer = 1 / math.tanh(epsilon / 2)
        kept_away = 2 * 2 * outer**2 * 3e-6
        assert closed <= summed_variance(channel) * (1 + 1e-9) <= closed + 1.1 * kept_away
        assert rq.certify(channel).epsilon.upper <= epsilon


@pytest.mark.parametrize("geometry", ["l1", "l2"])
def test_metric_privacy_holds_and_the_mean_is_exact(geometry):
    channel = rq.mvu(2.0, 4, 1.0, inputs=3, geometry=geometry)
    certificate = rq.certify_metric(channel, geometry)
    assert 1 - 1e-5 < certificate.epsilon.upper <= 1.0
    assert rq.moments(channel).bias_max < 1e-9
    # Over the whole range the logarithms may change by 2 then, so the variance is smaller.
    assert summed_variance(channel) < summed_variance(rq.mvu(2.0, 4, 1.0, inputs=3))


def test_wrong_geometries_are_refused():
    with pytest.raises(ValueError, match="pure, l1, l2"):
        rq.mvu(1.0, 4, 1.0, geometry="linf")

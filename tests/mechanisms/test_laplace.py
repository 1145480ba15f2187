"""Discrete Laplace noise in shares: the law of their tables, and what is drawn."""

import math

import chance
import numpy as np
import pytest

from randquant.channels import Key
from randquant.mechanisms import BITS, DiscreteLaplace
from randquant.mechanisms import noise as laws


@pytest.mark.parametrize(("scale", "clients"), [(0.125, 1), (1.5, 3), (6.0, 40), (300.0, 5)])
def test_the_table_is_the_law_up_to_the_stated_distance(scale, clients):
    """Every threshold, in exact arithmetic, and the tail beyond the last."""
    table = laws._polya_table(scale, clients)
    words = [
        int(high) << (BITS - 64) | low for high, low in zip(table.high, table.low, strict=False)
    ]
    masses = np.diff([0, *words, 1 << BITS])
    p, k = math.exp(-1 / scale), np.arange(len(masses) - 1.0)
    first = math.exp(math.log1p(-p) / clients)
    exact = first * np.cumprod(np.append(1.0, p * (k + 1 / clients) / (k + 1)))
    drawn = np.array([int(mass) / 2**BITS for mass in masses])
    np.testing.assert_allclose(drawn, exact, rtol=1e-9, atol=1e-50)
    assert exact[-1] * p / (1 - p) < 2.0**-199
    noise = DiscreteLaplace(scale, clients)
    assert 0 < noise.distance(1) <= noise.distance(clients) < 1e-45
    assert noise.distance(clients) >= 2 * clients * table.distance


@pytest.mark.parametrize(("scale", "clients"), [(2.0, 1), (2.0, 4), (5.0, 30)])
def test_summed_shares_are_drawn_from_the_certified_law(scale, clients):
    noise, key, count = DiscreteLaplace(scale, clients), Key.from_seed(4), 40_000
    total = sum(noise.draw(count, key.fold_in(k)) for k in range(clients))
    p, reach = math.exp(-1 / scale), 200
    row = (1 - p) / (1 + p) * p ** np.abs(np.arange(-reach, reach + 1.0))
    assert chance.fits(total + reach, row / row.sum())
    if clients == 4:  # a share too few is noticed
        assert not chance.fits(total - noise.draw(count, key.fold_in(0)) + reach, row / row.sum())
    assert noise.variance * clients == pytest.approx(2 * p / (1 - p) ** 2)


@pytest.mark.parametrize(("scale", "clients"), [(0.1, 1), (2.0**16, 1), (1.0, 0), (math.nan, 2)])
def test_scales_and_numbers_out_of_bounds_are_refused(scale, clients):
    with pytest.raises(ValueError, match=r"^Expected (scale|clients)"):
        DiscreteLaplace(scale, clients)

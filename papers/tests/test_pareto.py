"""`randquant_papers.sweep.pareto`: exactly the runs that no other beats."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from randquant_papers.sweep.pareto import frontier

# Few values, so that ties are common.
POINTS = st.lists(
    st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.sampled_from([0.0, 1.0, 2.0, math.inf]))
)


def beats(a, b) -> bool:
    return a[0] >= b[0] and a[1] <= b[1] and a != b


@given(POINTS)
def test_a_point_is_on_the_frontier_exactly_if_no_promised_one_beats_it(points):
    """Sorted by epsilon; equal points are on it together as they came."""
    expected = [
        k
        for k, point in enumerate(points)
        if math.isfinite(point[1]) and not any(beats(other, point) for other in points)
    ]
    assert frontier(points) == sorted(expected, key=lambda k: points[k][::-1])


@pytest.mark.parametrize("point", [(math.nan, 1.0), (0.5, math.nan)])
def test_a_figure_that_is_none_is_refused(point):
    with pytest.raises(ValueError, match="Expected numbers"):
        frontier([(0.5, 1.0), point])

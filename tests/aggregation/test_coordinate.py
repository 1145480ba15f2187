"""What a channel mechanism offers an audit, and the bound for equal codes at its end."""

import numpy as np
import pytest

import randquant as rq
from randquant.aggregation import ChannelMechanism, log_equal_codes

DOWN, UP = np.float32(-np.inf), np.float32(np.inf)


@pytest.mark.parametrize("jump", [0.1, 0.5, 0.7, -0.1, -0.7, 0.0])
def test_an_audit_is_given_the_floats_next_to_a_jump_on_either_side(jump):
    """The worst pair are the limits of a jump, whose place 32-bit floats may not have."""
    rows = np.array([[4, 4], [7, 1], [1, 7], [4, 4]])
    channel = rq.Channel(np.array([-1.0, jump, jump, 1.0]), np.array([-1.0, 1.0]), rows, 8)
    left, right = map(np.float32, sorted(ChannelMechanism(channel).audit_inputs()))
    assert float(left) < jump <= float(right)
    assert float(np.nextafter(left, UP)) >= jump > float(np.nextafter(right, DOWN))
    for x, row in ((left, rows[1]), (right, rows[2])):
        weights, total = channel.mix(float(x))
        assert weights.astype(float) / total == pytest.approx(row / 8, rel=1e-5, abs=0)


def test_codes_that_are_sure_are_equal_for_sure_and_not_more_often():
    assert log_equal_codes(rq.stochastic_rounding(clip=1.0, levels=2)) == 0.0

"""Rounds with faults at random: nothing lost, nothing wrong."""

from __future__ import annotations

import logging

import pytest
from flower_soak import soak

ROUNDS = 30


@pytest.mark.slow
def test_with_faults_at_random_every_mean_is_exact_and_every_answer_is_counted(tmp_path, caplog):
    """A round fails with probability below 1/5: that 20 of 30 fail is an accident of 1e-8."""
    caplog.set_level(logging.CRITICAL, logger="flwr")
    seen = soak(ROUNDS, 1, tmp_path)
    assert seen["rounds"] + seen["failed"] >= ROUNDS  # the last one may be run again
    assert seen["rounds"] > 10
    assert seen["lost"] + seen["damaged"] + seen["replayed"] > 5
    assert seen["crashed"] > 3
    assert seen["crashed after its reply"] > 1

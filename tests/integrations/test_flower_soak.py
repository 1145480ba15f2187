"""Rounds with faults at random: nothing lost, nothing wrong."""

from __future__ import annotations

import logging

import pytest
from flower_soak import soak

ROUNDS = 30


@pytest.fixture(autouse=True)
def _quiet():
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.slow
def test_with_faults_at_random_every_mean_is_exact_and_every_answer_is_counted(tmp_path):
    """A round fails with probability below 1/5: that 20 of 30 fail is an accident of 1e-8."""
    seen = soak(ROUNDS, 1, tmp_path)
    assert seen["rounds"] + seen["failed"] >= ROUNDS  # the last one may be run again
    assert seen["rounds"] > 10
    assert seen["lost"] + seen["damaged"] + seen["replayed"] > 5
    assert seen["crashed"] > 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_processes_that_are_killed_at_any_time_lose_nothing_and_repeat_nothing(tmp_path):
    """Of some 200 messages 8 % are killed: none would be an accident of 1e-5, whatever the load."""
    seen = soak(5, 3, tmp_path, processes=True)
    assert seen["rounds"] >= 1
    assert seen["killed without reply"] + seen["killed with reply"] >= 1

"""A server's run: what failed, killed and rejected rounds leave behind."""

from __future__ import annotations

import numpy as np
import pytest
from flower_rounds import NOISY

from randquant.aggregation import VectorMechanism
from randquant.rounds import (
    Layout,
    Offer,
    RoundsFailed,
    RunAccountant,
    ServerRun,
    ServerStore,
    UntunedSteps,
)

MODEL = {"w": np.zeros(5, np.float32)}
LAYOUT, MECHANISM = Layout.from_model(MODEL), VectorMechanism(NOISY, 1.0)


def made(folder=None, **options) -> tuple[ServerRun, Offer]:
    store = None if folder is None else ServerStore(folder / "server.sqlite")
    run = ServerRun(MECHANISM, RunAccountant(1e-5), lambda *_: None, store=store, **options)
    return run, run.offer(LAYOUT, "refuse")


def asked(run, offer, number):
    run.charge(number, offer, [1, 2], lambda: (MODEL, {}))


def succeeded(run, offer, number):
    asked(run, offer, number)
    run.succeeded(number, 2, 2, {}, (MODEL, {}))


def unasked(run, offer, number):
    run.failed(number, 0, ValueError("too few are connected"))


def failed(run, offer, number):
    asked(run, offer, number)
    run.failed(number, 2, ValueError("nobody answered"))


@pytest.mark.parametrize(
    ("rounds", "done"),
    [("s", 1), ("sfa", 2), ("ffa", 2), ("sf", 1), ("sfsa", 3), ("sa", 1), ("nns", 3), ("nnnfa", 4)],
)
def test_a_run_goes_on_after_the_last_round_that_is_over(rounds, done, tmp_path):
    """Rounds that succeed, fail, fail before anybody is asked, or are asked for when the server
    dies. Failed ones count, too: else a client would be asked more rounds than were declared."""
    run, offer = made(tmp_path, patience=9)
    for number, kind in enumerate(rounds, 1):
        {"s": succeeded, "f": failed, "a": asked, "n": unasked}[kind](run, offer, number)
    again, offer = made(tmp_path)
    stored = again.stored(offer, MODEL)
    assert stored is not None
    again.restore(stored, offer)
    assert again.done == done
    assert [row.round for row in again.history] == list(range(1, len(rounds.rstrip("a")) + 1))
    assert [bool(row.failed) for row in again.history] == [k in "nf" for k in rounds.rstrip("a")]
    assert again.accountant.answers(1) == len(rounds.lstrip("n"))


def test_patience_ends_after_failures_in_a_row_and_not_after_as_many_in_all():
    run, offer = made(patience=2)
    for number in (1, 3, 5):
        failed(run, offer, number)
        succeeded(run, offer, number + 1)
    failed(run, offer, 7)
    with pytest.raises(RoundsFailed, match="2 failures in a row"):
        failed(run, offer, 8)


def test_a_step_that_is_rejected_leaves_the_next_one_as_it_was():
    steps, mean = UntunedSteps("classes"), np.linspace(-1, 1, 5, dtype=np.float32)
    run, _ = made(untuned=steps)
    offer = run.offer(LAYOUT, "refuse")
    first = steps.step(offer, LAYOUT, MODEL, mean, 2, 10)
    assert np.array_equal(steps.step(offer, LAYOUT, MODEL, mean, 2, 10), first)
    assert steps.record() == {}
    steps.keep_step()
    assert steps.record()["round"] == 1
    assert not np.array_equal(steps.step(offer, LAYOUT, {"w": first}, mean, 2, 10), first)

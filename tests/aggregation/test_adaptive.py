"""How many coordinates are sent, by the length of the means released so far."""

import math

import numpy as np
import pytest

from randquant.aggregation.adaptive import MEMORY, TOLERATED, AdaptiveMechanism
from randquant.aggregation.registry import update_mechanism
from randquant.aggregation.saved import from_record
from randquant.channels.keys import Key
from randquant.privacy.accounting.accountant import account
from randquant.privacy.certificates.work import LEAST, MOST, Allowance

DIMENSION, CLIENTS = 900, 8
COUNTS = (None, 512, 128)


def sending(count, trust="local", margin=20.0, cohort=None):
    bits = {"clip": 0.2, "levels": 2, "margin": margin * math.sqrt((count or 1024) / 1024)}
    return update_mechanism(
        "stochastic-rounding", bits, trust=trust, cohort=cohort, clip_norm=1.0, coordinates=count
    )


ADAPTIVE = AdaptiveMechanism(tuple(map(sending, COUNTS)))


def test_the_fewest_bytes_near_the_least_error_are_chosen():
    sizes = []
    for length in (1.0, 0.5, 0.0):
        now = ADAPTIVE.adapted((length**2,), DIMENSION, 100_000)
        errors = [e.expected_error(DIMENSION).deviation(100_000, length) for e in ADAPTIVE.choices]
        sizes.append(now.size(DIMENSION))
        assert errors[now.chosen] <= TOLERATED * min(errors)
        assert all(error > TOLERATED * min(errors) for error in errors[now.chosen + 1 :])
    assert sizes == [1024, 512, 128]
    first = ADAPTIVE.adapted((), DIMENSION, 100_000)  # nothing known: as long as it can be
    assert first == ADAPTIVE.adapted((4.0,), DIMENSION, 100_000) == ADAPTIVE
    assert ADAPTIVE.adapted((1.0, -9.0), DIMENSION, 100_000).chosen == 2  # they average


@pytest.mark.parametrize("chosen", range(len(COUNTS)))
def test_the_squared_length_is_estimated_without_bias(chosen):
    """From 100 rounds of clients with the same short update, within 5.5 standard errors."""
    mechanism = AdaptiveMechanism(tuple(sending(count, margin=1.0) for count in COUNTS), chosen)
    update = np.full(DIMENSION, 0.4 / math.sqrt(DIMENSION), dtype=np.float32)
    found = []
    for number in range(100):
        here, root = mechanism.in_round(number), Key.from_seed(number)
        keys = [root.fold_in(client) for client in range(CLIENTS)]
        mean = here.mean(here.encode_many(np.tile(update, (CLIENTS, 1)), keys))
        found.append(here.noted((), mean, CLIENTS)[-1])
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    # The gain is that of updates of length clip_norm, a little off.
    assert abs(np.mean(found) - 0.16) < 5.5 * error
    assert min(found) < 0 < max(found)


def test_only_the_last_rounds_are_remembered():
    means = [np.full(DIMENSION, length / math.sqrt(DIMENSION)) for length in range(MEMORY + 3)]
    each = [ADAPTIVE.noted((), mean, CLIENTS)[0] for mean in means]
    assert sorted(set(each)) == each
    squares = ()
    for number, mean in enumerate(means, start=1):
        squares = ADAPTIVE.noted(squares, mean, CLIENTS)
        assert squares == tuple(each[:number][-MEMORY:])


def test_each_round_counts_as_the_costliest_choice():
    release = ADAPTIVE.release(DIMENSION, 4)
    each = [choice.release(DIMENSION, 4) for choice in ADAPTIVE.choices]
    most = max(one.renyi(2.0) for one in each)
    assert most <= release.renyi(2.0) <= most * (1 + 1e-12)
    assert account([release], 1e-5).epsilon >= max(account([o], 1e-5).epsilon for o in each)
    for changed in (ADAPTIVE.in_round(5), ADAPTIVE.adapted((0.0,), DIMENSION, 100_000)):
        assert changed.release(DIMENSION, 4) == release


@pytest.mark.parametrize(
    ("choices", "chosen", "sentence"),
    [
        ((), 0, "Expected number of choices"),
        (ADAPTIVE.choices, 3, "Expected chosen"),
        ((sending(8), sending(8, "aggregate", cohort=3)), 0, "Expected choices of one trust"),
        ((update_mechanism("clipped-sgd", {"clip_norm": 1.0}),), 0, "Expected choices that clip"),
        ((update_mechanism("rqm", {"clip": 1.0, "levels": 4, "margin": 1.0, "keep": 0.5}),), 0,
         "Expected choices that clip"),
    ],
)  # fmt: skip
def test_choices_that_do_not_go_together_are_refused(choices, chosen, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        AdaptiveMechanism(choices, chosen)


def test_a_record_with_a_choice_of_another_kind_is_refused():
    record = ADAPTIVE.record()
    with pytest.raises(TypeError, match="Expected a mechanism's record"):
        from_record({**record, "choices": [1]})
    with pytest.raises(TypeError, match="Expected choices to be a list"):
        from_record({**record, "choices": 5})


def test_every_choice_of_a_record_counts_in_the_work_that_a_message_may_take():
    """A server that may not send one long certificate may not send sixteen in one record."""
    allowance = Allowance()
    assert from_record(ADAPTIVE.record(), allowance=allowance) == ADAPTIVE
    assert allowance.left <= MOST - LEAST * len(COUNTS)
    allowance.left = LEAST * len(COUNTS) - 1
    with pytest.raises(ValueError, match="too long"):
        from_record(ADAPTIVE.record(), allowance=allowance)

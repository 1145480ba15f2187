"""Flower: updates go out protected or not at all, and only good replies make a step."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_grid import InProcessGrid, client_app, over_the_wire
from flower_rounds import (
    ANYTHING,
    EXACT,
    NOISY,
    STEPS,
    ask,
    changed_offer,
    changed_request,
    exact,
    fedavg,
    mean_of,
    model,
    mover,
    noisy,
    one_round,
    refusals,
    run,
    saved_state,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from hypothesis import given, settings
from hypothesis import strategies as st

import randquant as rq
from randquant._internal.rounding import round_up
from randquant.aggregation.coordinate import ChannelMechanism
from randquant.aggregation.registry import update_mechanism
from randquant.aggregation.secagg.client import Client
from randquant.aggregation.secagg.terms import ProtocolError
from randquant.aggregation.vector import VectorMechanism
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.integrations.flower import accountant as accounting
from randquant.integrations.flower import messages as wire_messages
from randquant.integrations.flower import state
from randquant.integrations.flower.accountant import RoundEvent, RunAccountant
from randquant.integrations.flower.ledger import OWN, SPENT, ClientLedger
from randquant.integrations.flower.messages import HEAD, INBOX, PAYLOAD, STYPE, read_terms
from randquant.integrations.flower.mod import QuantizeMod
from randquant.integrations.flower.offer import Offer
from randquant.integrations.flower.strategy import QuantizedStrategy, RoundsFailed
from randquant.privacy.accounting.accountant import account

# What comes out


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@settings(max_examples=12)
@given(
    clients=st.integers(2, 9), dimension=st.integers(1, 40), neighbours=st.sampled_from([None, 4])
)
def test_the_step_is_the_exact_mean_of_the_updates(trust, clients, dimension, neighbours):
    nodes = [7 + 2**63 * (n % 2) + n for n in range(clients)]  # Flower's numbers have 64 bits
    mod = QuantizeMod(epsilon=math.inf, all_neighbours=False)
    grid = InProcessGrid(client_app(mod, mover), nodes)
    strategy = QuantizedStrategy(fedavg(), exact(trust), neighbours=neighbours)
    result = run(strategy, grid, model(dimension))
    np.testing.assert_allclose(result.arrays["w"].numpy(), mean_of(nodes, dimension), atol=1e-6)
    assert result.train_metrics_clientapp[1]["clients"] == clients
    assert result.train_metrics_clientapp[1]["dropped"] == 0


@settings(max_examples=25)
@given(data=st.data(), clients=st.integers(4, 8))
def test_whoever_leaves_at_whatever_step_the_rest_is_summed_exactly(data, clients):
    nodes = list(range(1, clients + 1))
    leaves = data.draw(st.dictionaries(st.sampled_from(nodes), st.sampled_from(STEPS), max_size=2))

    def fault(step, node, reply):
        gone = node in leaves and STEPS.index(step) >= STEPS.index(leaves[node])
        return [] if gone else [reply]

    strategy = QuantizedStrategy(fedavg(), exact(), patience=5)
    result = run(strategy, InProcessGrid(client_app(ANYTHING, mover), nodes, fault))
    there = [n for n in nodes if STEPS.index(leaves.get(n, "reveal")) > STEPS.index("upload")]
    shared = [n for n in nodes if STEPS.index(leaves.get(n, "reveal")) > STEPS.index("share")]
    threshold = math.ceil(2 * (clients - 1) / 3)
    answered = [n for n in there if n not in leaves]
    # Of everyone who shared, `threshold` neighbours must answer.
    enough = all(len(set(answered) - {n}) >= threshold for n in shared)
    if enough and len(answered) > threshold:
        np.testing.assert_allclose(result.arrays["w"].numpy(), mean_of(there), atol=1e-6)
        assert result.train_metrics_clientapp[1]["clients"] == len(there)
    else:
        assert not result.train_metrics_clientapp
        assert not result.arrays["w"].numpy().any()


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_noisy_updates_are_decoded_without_bias(trust):
    grid = InProcessGrid(
        client_app(ANYTHING, lambda node, name, a: a + np.float32(0.01)), range(1, 11)
    )
    strategy = QuantizedStrategy(fedavg(), noisy(trust))
    arrays, steps = model(4096), []
    for number in range(1, 4):
        requests = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        after, _ = strategy.aggregate_train(number, grid.send_and_receive(requests))
        steps.append(after["w"].numpy())
    mean = np.mean(steps)
    # Values ±1, 10 clients, 3 rounds, 4096 coordinates: a deviation of 1/sqrt(122,880) = 0.0029.
    # Five of them: wrong once in 1.7 million runs.
    assert abs(mean - 0.01) < 5 * 0.0029


def test_arrays_keep_their_dtypes_and_counters_their_values():
    arrays = ArrayRecord(
        {
            "half": Array(np.zeros((2, 3), dtype=np.float16)),
            "counter": Array(np.array(7)),
            "double": Array(np.zeros(2)),
            "mask": Array(np.array([True, False])),
        }
    )

    def train(node, name, array):
        return array + np.ones_like(array) if array.dtype.kind in "fi" else ~array

    for strategy in (fedavg(), FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5)):
        grid = InProcessGrid(client_app(ANYTHING, train), [1, 2, 3])
        found = run(QuantizedStrategy(strategy, exact()), grid, arrays, 2).arrays
        assert {k: (a.dtype, a.shape) for k, a in found.items()} == {
            k: (a.dtype, a.shape) for k, a in arrays.items()
        }
        assert found["counter"].numpy() == 7
        assert found["mask"].numpy().tolist() == [True, False]
        step = 2 * getattr(strategy, "server_learning_rate", 1.0)
        assert found["half"].numpy().tolist() == [[step] * 3] * 2
        assert found["double"].numpy().tolist() == [step] * 2


def test_any_strategy_takes_the_step_that_it_would_without_us():
    for make in (
        lambda: FedAdam(fraction_evaluate=0.0, eta=0.1),
        lambda: FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.3, server_momentum=0.5),
        lambda: strategies.FedYogi(fraction_evaluate=0.0),
        lambda: strategies.FedProx(fraction_evaluate=0.0, proximal_mu=0.1),
    ):
        found = run(
            QuantizedStrategy(make(), exact()),
            InProcessGrid(client_app(ANYTHING, mover), [1, 2, 3]),
            rounds=3,
        ).arrays
        plain, arrays = make(), model()
        for number in range(1, 4):
            grid = InProcessGrid(client_app(ANYTHING, mover), [1, 2, 3])
            (request, *_) = plain.configure_train(number, arrays, ConfigRecord(), grid)
            moved = arrays["w"].numpy() + mean_of([1, 2, 3]).astype(np.float32)
            reply = Message(
                RecordDict(
                    {
                        "arrays": ArrayRecord({"w": Array(moved)}),
                        "metrics": strategies_metrics(),
                    }
                ),
                reply_to=request,
            )
            arrays, _ = plain.aggregate_train(number, [reply])
        np.testing.assert_allclose(
            found["w"].numpy(), arrays["w"].numpy(), rtol=1e-5, atol=1e-7, err_msg=str(make())
        )


def strategies_metrics():
    from flwr.app import MetricRecord

    return MetricRecord({"num-examples": 1.0})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Krum", {}),
        ("MultiKrum", {}),
        ("Bulyan", {}),
        ("FedMedian", {}),
        ("FedTrimmedAvg", {}),
        ("QFedAvg", {"client_learning_rate": 0.1}),
    ],
)
def test_strategies_that_look_at_each_update_are_refused(name, options):
    with pytest.raises(ValueError, match=f"needs only the mean of updates, got {name}"):
        QuantizedStrategy(getattr(strategies, name)(**options), exact())


def test_what_cannot_be_wrapped_says_so():
    with pytest.raises(ValueError, match="without privacy of its own"):
        QuantizedStrategy(QuantizedStrategy(fedavg(), exact()), exact())
    with pytest.raises(TypeError, match="baselines are for simulation"):
        QuantizedStrategy(fedavg(), update_mechanism("clipped-sgd", {"clip": 1.0}))
    with pytest.raises(ValueError, match="the guarantee needs that many"):
        QuantizedStrategy(fedavg(), exact(cohort=5), least=4)
    with pytest.raises(ValueError, match="a sum of one hides nothing"):
        QuantizedStrategy(fedavg(), exact(cohort=1))


# What leaves a client


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_nothing_but_ours_leaves_a_client(trust):
    _, grid, _ = one_round(exact(trust))
    for step, _, _, reply in grid.seen:
        assert set(reply.content) <= {HEAD, PAYLOAD, INBOX}
        assert set(reply.content[HEAD]) == {"step", "session"}
        if step == "upload":
            array = reply.content[PAYLOAD]["codes"]
            assert array.stype == STYPE
            with pytest.raises(TypeError, match="Unsupported serialization"):
                array.numpy()
    assert {step for step, *_ in grid.seen} == ({"upload"} if trust == "local" else set(STEPS))


def test_a_sum_is_forgotten_when_it_is_over():
    _, grid, _ = one_round(exact())
    for context in grid.contexts.values():
        assert set(context.state) == {SPENT}


def test_masked_payloads_of_equal_updates_differ_and_have_the_stated_size():
    dimension, clients = 1000, 5
    grid = InProcessGrid(client_app(ANYTHING, lambda n, name, a: a), range(1, clients + 1))
    run(QuantizedStrategy(fedavg(), exact()), grid, model(dimension))
    payloads = {
        reply.content[PAYLOAD]["codes"].data for step, _, _, reply in grid.seen if step == "upload"
    }
    bits = math.ceil(math.log2(clients * (EXACT.levels - 1) + 1))
    assert len(payloads) == clients
    assert {len(payload) for payload in payloads} == {wire.HEADER_BYTES + dimension * bits // 8}


@pytest.mark.parametrize(
    ("train", "log"),
    [
        (lambda n, name, a: a + np.float32("nan" if n == 2 else 1), "nan"),
        (lambda n, name, a: a + np.float32("inf" if n == 2 else 1), "inf"),
        (lambda n, name, a: np.zeros(3, np.float32) if n == 2 else a + 1, "shape"),
        (lambda n, name, a: np.zeros(5, np.int64) if n == 2 else a + 1, "int64"),
    ],
)
def test_an_update_that_cannot_be_sent_is_not_and_the_server_does_not_learn_why(train, log):
    found, grid, _ = one_round(exact(), train=train)
    assert found.tolist() == [1.0] * 5
    (reply,) = [r for step, node, _, r in grid.seen if node == 2 and step == "upload"]
    assert reply.error.reason == "This client has no update to send; its log says why."
    assert log not in reply.error.reason


def test_a_client_refuses_what_is_beyond_its_limit_and_counts_what_it_has_answered():
    """A client computes the bound itself, from the channel that came."""
    mechanism = noisy(cohort=4)
    cost = [account([mechanism.release(5, n)], 1e-5, quick=True).epsilon for n in (1, 2, 3)]
    mod = QuantizeMod(epsilon=(cost[1] + cost[2]) / 2, delta=1e-5)
    grid = InProcessGrid(client_app(mod, mover), range(1, 6))
    strategy = QuantizedStrategy(fedavg(), mechanism, patience=2)
    with pytest.raises(RoundsFailed, match="2 failures in a row"):
        run(strategy, grid, rounds=9)
    assert strategy.accountant.answers(1) == 2
    assert len(refusals(grid)) == 5
    for reason in refusals(grid).values():
        assert f"Expected an offer within epsilon {mod.epsilon}" in reason
        assert round_up(cost[2]) in reason


def test_the_account_of_a_client_outlasts_a_run_in_its_file(tmp_path):
    mechanism = noisy("local")
    cost = [account([mechanism.release(5, n)], 1e-5, quick=True).epsilon for n in (1, 2, 3)]
    app = client_app(QuantizeMod(epsilon=cost[1] + 1e-3), mover)
    uploaded = []
    for first in (1, 11, 21):  # each run knows the SuperNode by another number
        grid = InProcessGrid(app, [first, first + 1])
        grid.contexts[first].node_config["randquant-ledger"] = str(tmp_path / "account.json")
        run(QuantizedStrategy(fedavg(), mechanism), grid)
        uploaded.append(first not in refusals(grid))
        assert first + 1 not in refusals(grid)
    assert uploaded == [True, True, False]


@pytest.mark.parametrize(("own", "refuses"), [(True, True), ("yes", True), (False, False)])
def test_a_node_asks_for_all_neighbours(own, refuses):
    mod = QuantizeMod(math.inf, all_neighbours=not refuses)
    grid = InProcessGrid(client_app(mod, mover), range(1, 6))
    for context in grid.contexts.values():
        context.node_config["randquant-all-neighbours"] = own
    run(QuantizedStrategy(fedavg(), exact(), neighbours=2), grid)
    assert len(refusals(grid)) == 5 * refuses


def test_a_node_sets_its_own_limit():
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    grid.contexts[3].node_config["randquant-epsilon"] = 0.01
    run(QuantizedStrategy(fedavg(), noisy()), grid)
    assert set(refusals(grid)) == {3}


@pytest.mark.parametrize(
    ("mod", "mechanism", "options", "reason"),
    [
        (QuantizeMod(math.inf, trust="local"), exact(), {}, "offer of local trust"),
        (ANYTHING, exact(), {"neighbours": 2}, "all 4 others as neighbours, got 2"),
        (
            QuantizeMod(math.inf, colluders=3),
            exact(cohort=3),
            {"least": 5},
            "a cohort of at most 2",
        ),
        (QuantizeMod(math.inf, colluders=2), exact(cohort=3), {"least": 5}, "2 colluders cannot"),
    ],
)
def test_a_client_refuses_sums_that_it_does_not_trust(mod, mechanism, options, reason):
    grid = InProcessGrid(client_app(mod, mover), range(1, 6))
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), mechanism, patience=1, **options), grid)
    assert len(refusals(grid)) == 5
    assert all(reason in text for text in refusals(grid).values())


def lower_threshold(message):
    terms_of(message, threshold=5)  # of 9; two thirds are 6


def test_no_server_lowers_the_threshold_below_a_clients_own_word():
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 11))
    changed_request(grid, "advertise", lower_threshold)
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), exact(), patience=1), grid)
    assert len(refusals(grid)) == 10
    assert all(
        "threshold of 6 of 9 neighbours or more, got 5" in r for r in refusals(grid).values()
    )


@pytest.mark.parametrize(
    ("own", "config", "refused"), [(0.5, None, 0), (2 / 3, 0.5, 0), (0.5, 0.6, 10), (0.5, "x", 10)]
)
def test_a_client_may_agree_to_a_lower_threshold(own, config, refused):
    grid = InProcessGrid(client_app(QuantizeMod(math.inf, threshold=own), mover), range(1, 11))
    for context in grid.contexts.values():
        context.node_config |= {} if config is None else {"randquant-threshold": config}
    changed_request(grid, "advertise", lower_threshold)
    strategy = QuantizedStrategy(fedavg(), exact())
    run(strategy, grid)
    steps = {step for step, *_ in grid.seen}
    assert len(refusals(grid)) == refused
    assert ("share" in steps) == (refused == 0)
    with pytest.raises(ValueError, match="threshold"):
        QuantizeMod(math.inf, threshold=0)


def hostile_codes(monkeypatch, number, code):
    """One client masks `code` in place of every code of its update."""
    honest = Client.mask

    def mask(self, vector, sealed):
        return honest(self, vector * 0 + code if self.number == number else vector, sealed)

    monkeypatch.setattr(Client, "mask", mask)


def test_a_mean_that_no_codes_have_is_refused(monkeypatch):
    """One client of five sends 4 where codes are 0 to 2: the mean would be beyond all updates."""
    hostile_codes(monkeypatch, 2, np.uint8(4))
    grid = InProcessGrid(client_app(ANYTHING, lambda node, name, a: a + 1), range(1, 6))
    strategy = QuantizedStrategy(fedavg(), exact(), patience=1)
    with pytest.raises(RoundsFailed, match="totals of 10 at most, got 12"):
        run(strategy, grid)


def test_the_most_that_one_client_can_do_to_a_mean_is_to_make_it_the_largest(monkeypatch):
    """From the lowest of all honest means to the highest, and no further; docs say so."""
    hostile_codes(monkeypatch, 2, np.uint8(10))
    grid = InProcessGrid(client_app(ANYTHING, lambda node, name, a: a - 1), range(1, 6))
    found = run(QuantizedStrategy(fedavg(), exact()), grid).arrays["w"].numpy()
    assert found.tolist() == [1.0] * 5


def test_secrets_of_a_sum_are_forgotten_when_a_step_of_it_fails():
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    again = []

    def wrong(message):
        node = message.metadata.dst_node_id
        if node != 3:
            return
        right = over_the_wire(message)
        message.content[HEAD]["survivors"] = ["1", "2"]
        message.metadata.__dict__["_message_id"] = "wrong"
        first = grid.app(over_the_wire(message), grid.contexts[node])
        assert "this client among" in first.error.reason
        assert set(grid.contexts[node].state) == {SPENT}
        again.append(grid.app(right, grid.contexts[node]).error.reason)

    changed_request(grid, "confirm", wrong)
    found = run(QuantizedStrategy(fedavg(), exact()), grid).arrays["w"].numpy()
    np.testing.assert_allclose(found, mean_of(range(1, 6)), atol=1e-6)
    assert again == ["Expected a message of the sum that this client is in, got another."]


def test_without_our_strategy_a_client_sends_nothing():
    """The train function under the mod is not even called."""
    grid = InProcessGrid(client_app(ANYTHING, None), [1, 2])
    fedavg().start(grid, model(), 1)
    assert len(refusals(grid)) == 2
    assert all("'randquant'" in reason for reason in refusals(grid).values())


def terms_of(message, **changes):
    record = json.loads(message.content[HEAD]["terms"])
    message.content[HEAD]["terms"] = json.dumps({**record, **changes})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: changed_offer(m, lambda r: r["channel"]["weights"][0].reverse()), "offer"),
        (
            lambda m: changed_offer(
                m, lambda r: r["channel"]["certificate"].update(epsilon={"lower": 0, "upper": 1})
            ),
            "certified at epsilon 1 as it says",
        ),
        (lambda m: changed_offer(m, lambda r: r.update(format="2")), "format is another"),
        (lambda m: changed_offer(m, lambda r: r.update(cohort=4)), "a cohort of at most 3"),
        (lambda m: changed_offer(m, lambda r: r.update(more=4)), "offer of this package"),
        (lambda m: changed_offer(m, lambda r: r.update(dimension=0)), "dimension"),
        (lambda m: m.content[HEAD].update(offer="{"), "offer of this package"),
        (lambda m: m.content[HEAD].update(terms="[]"), "terms of a secure sum"),
        (lambda m: terms_of(m, least=2), "a cohort of at most 2"),
        (lambda m: terms_of(m, bits=1), "bits enough"),
        (lambda m: terms_of(m, clients=[1, 2, 3, 9]), "one of the sum's clients"),
    ],
)
def test_a_changed_offer_is_refused(change, reason, caplog):
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    changed_request(grid, "advertise", change)
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), exact(cohort=3), patience=1), grid)
    assert refusals(grid)
    logged = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    assert len(logged) == len(refusals(grid))
    assert all(reason in text for text in logged)


def test_without_secure_aggregation_an_offer_that_counts_on_it_is_refused():
    def bare(message):
        message.content[HEAD] = ConfigRecord(
            {"step": "upload", "session": b"x", "offer": Offer(exact(), 5).to_text()}
        )
        del message.content[INBOX]

    grid = changed_request(InProcessGrid(client_app(ANYTHING, mover), range(1, 6)), "upload", bare)
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), exact(), patience=1), grid)
    assert set(refusals(grid).values()) == {
        "Expected secure aggregation, which the offer needs, got none."
    }


def test_a_step_is_taken_once_and_not_again_after_an_error():
    """A server that asks twice gets one answer: two masked vectors would differ by codes only."""
    _, grid, _ = one_round(exact())
    again = [(step, node, request) for step, node, request, _ in grid.seen if step != "advertise"]
    for _step, node, request in again:
        reply = grid.app(request, grid.contexts[node])
        assert "the sum that this client is in" in reply.error.reason

    repeated = []

    def twice(message):
        node = message.metadata.dst_node_id
        first = grid.app(over_the_wire(message), grid.contexts[node])
        repeated.append(first)

    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    changed_request(grid, "upload", twice)
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), exact(), patience=1), grid)
    assert all(reply.has_content() for reply in repeated)
    assert len(refusals(grid)) == 5
    assert all("each step of a sum once" in reason for reason in refusals(grid).values())


def test_signed_keys_keep_a_server_from_standing_between(tmp_path):
    nodes = range(1, 6)
    identities = {n: Ed25519PrivateKey.generate() for n in nodes}
    directory = {str(n): k.public_key().public_bytes_raw().hex() for n, k in identities.items()}
    (tmp_path / "directory.json").write_text(json.dumps(directory))

    def grid():
        made = InProcessGrid(client_app(ANYTHING, mover), nodes)
        for n, key in identities.items():
            path = tmp_path / f"{n}.pem"
            path.write_bytes(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
            made.contexts[n].node_config.update(
                {
                    "randquant-identity": str(path),
                    "randquant-directory": str(tmp_path / "directory.json"),
                }
            )
        return made

    good = grid()
    found = run(QuantizedStrategy(fedavg(), exact()), good).arrays["w"].numpy()
    np.testing.assert_allclose(found, mean_of(nodes), atol=1e-6)

    def swapped(message):
        inbox = message.content[INBOX]
        first = next(iter(inbox))
        inbox[first] = bytes(96)

    bad = changed_request(grid(), "share", swapped)
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), exact(), patience=1), bad)
    assert all("keys signed by client" in reason for reason in refusals(bad).values())

    unsigned = grid()
    unsigned.contexts[2].node_config.pop("randquant-identity")
    known = {int(n): bytes.fromhex(key) for n, key in directory.items()}
    found = run(QuantizedStrategy(fedavg(), exact(), directory=known), unsigned).arrays["w"].numpy()
    np.testing.assert_allclose(found, mean_of({1, 3, 4, 5}), atol=1e-6)


def test_what_is_spent_between_the_first_step_and_the_upload_counts():
    """A client that agreed to a sum and answered others since refuses its upload."""
    local = noisy("local")
    one = account([local.release(5, 1)], 1e-5, quick=True).epsilon
    mod = QuantizeMod(epsilon=1.2 * one)
    grid = InProcessGrid(client_app(mod, mover), range(1, 6))
    changed_request(
        grid,
        "share",
        lambda m: ask(grid, m.metadata.dst_node_id, "upload", offer=Offer(local, 5).to_text()),
    )
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), noisy(cohort=5), patience=1), grid)
    assert len(refusals(grid)) == 5
    assert all("this client's limit" in reason for reason in refusals(grid).values())


def test_a_message_of_another_sum_does_not_end_the_one_that_runs():
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    replies = []
    changed_request(
        grid,
        "upload",
        lambda m: replies.append(ask(grid, m.metadata.dst_node_id, "confirm", b"another")),
    )
    found = run(QuantizedStrategy(fedavg(), exact()), grid).arrays["w"].numpy()
    assert all("the sum that this client is in" in r.error.reason for r in replies)
    np.testing.assert_allclose(found, mean_of(range(1, 6)), atol=1e-6)


def test_an_account_that_a_train_function_throws_away_is_kept():
    mechanism = noisy("local")
    limit = account([mechanism.release(5, 2)], 1e-5, quick=True).epsilon
    app = ClientApp()

    @app.train(mods=[QuantizeMod(epsilon=limit)])
    def _train(message, context):
        context.state = RecordDict({})
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    grid = InProcessGrid(app, [1, 2])
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), mechanism, patience=1), grid, rounds=9)
    assert sum(reply.has_content() for *_, reply in grid.seen) == 4


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_what_goes_wrong_in_training_stays_with_the_client(trust):
    def train(node, name, array):
        if node == 2:
            raise RuntimeError("patient 17 has a secret")
        return mover(node, name, array)

    found, grid, _ = one_round(exact(trust), train=train)
    np.testing.assert_allclose(found, mean_of([1, 3, 4, 5]), atol=1e-6)
    assert refusals(grid) == {2: "This client has no update to send; its log says why."}


def test_handlers_of_other_train_messages_are_protected_too():
    app = ClientApp()

    @app.train("fine", mods=[ANYTHING])
    def _fine(message, context):
        raise AssertionError

    @app.evaluate(mods=[ANYTHING])
    def _evaluate(message, context):
        return Message(RecordDict({"arrays": model()}), reply_to=message)

    grid = InProcessGrid(app, [1])
    for kind, passes in (("train.fine", False), ("evaluate", True)):
        message = Message(RecordDict({"arrays": model()}), dst_node_id=1, message_type=kind)
        assert app(over_the_wire(message), grid.contexts[1]).has_content() == passes


@pytest.mark.parametrize("where", ["request", "reply"])
def test_two_records_of_arrays_are_refused(where):
    app = ClientApp()

    @app.train(mods=[ANYTHING])
    def _train(message, context):
        records = {"arrays": message.content["arrays"]}
        if where == "reply":
            records["more"] = model()
        return Message(RecordDict(records), reply_to=message)

    grid = InProcessGrid(app, [1, 2, 3])
    if where == "request":
        changed_request(grid, "upload", lambda m: m.content.update({"more": model()}))
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), exact(), patience=1), grid)
    assert len(refusals(grid)) == 3


def test_a_request_of_another_model_is_refused():
    def larger(message):
        message.content["arrays"] = model(6)

    grid = changed_request(
        InProcessGrid(client_app(ANYTHING, mover), range(1, 6)), "upload", larger
    )
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), exact(), patience=1), grid)
    assert set(refusals(grid).values()) == {"Expected 5 coordinates as offered, got 6."}


def test_two_processes_of_one_client_spend_one_account(tmp_path):
    """Both look before either counts, were it not for the lock."""
    mechanism = noisy("local")
    limit = account([mechanism.release(5, 3)], 1e-5, quick=True).epsilon
    app = client_app(QuantizeMod(epsilon=limit), mover)
    grid = InProcessGrid(app, range(1, 9))
    for context in grid.contexts.values():
        context.node_config["randquant-ledger"] = str(tmp_path / "account.json")
    offer = Offer(mechanism, 5).to_text()
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda node: ask(grid, node, "upload", offer=offer), range(1, 9)))
    assert sum(reply.has_content() for reply in replies) == 3


@pytest.mark.parametrize("text", ["", "[]", '{"clients": {}}', None])
def test_an_account_that_cannot_be_used_is_refused_and_named_to_nobody(text, tmp_path, caplog):
    path = tmp_path / ("account" if text is not None else "no folder/account")
    grid = InProcessGrid(client_app(ANYTHING, mover), [1])
    grid.contexts[1].node_config["randquant-ledger"] = str(path)
    if text is not None:
        path.write_text(text)
    reply = ask(grid, 1, "upload", offer=Offer(noisy("local"), 5).to_text())
    assert reply.error.reason == "This client's files cannot be used; its log says why."
    assert ("Expected this client's account" if text is not None else "No such file") in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["offers"].append(state["offers"][0]),
        lambda state: state["clients"].update({"01": {"1": 7}}),
        lambda state: state["clients"]["1"].update({"00": 1}),
        lambda state: state["clients"]["1"].update({"-1": 1}),
        lambda state: state["clients"]["1"].update({"0": 2**53 + 1}),
        lambda state: state["clients"]["1"].update({"2": 1}),
        lambda state: state.update(offers=["[" * 100_000]),
    ],
    ids=["an offer twice", "a client twice", "a count twice", "from behind", "beyond accounting",
         "an offer that is not there", "a deep nest"],
)  # fmt: skip
def test_an_account_that_could_lose_a_count_is_refused(change):
    accountant = RunAccountant(1e-5)
    for offer in (Offer(noisy("local"), 5), Offer(noisy("local"), 6)):
        accountant.compose(RoundEvent(offer, frozenset({1})), 3)
    state = json.loads(json.dumps(accountant.state_dict()))
    other = RunAccountant(1e-5)
    other.load_state_dict(state)
    assert other.answers(1) == 6
    change(state)
    del state["checksum"]
    state["checksum"] = accounting._checksum(state)
    with pytest.raises(ValueError, match="Expected the state of this accountant, but"):
        other.load_state_dict(state)
    assert other.answers(1) == 6


def test_offers_and_terms_that_are_none_are_refused_in_a_sentence():
    deep = "[" * 100_000
    with pytest.raises(ValueError, match="Expected an offer of this package's version, but"):
        Offer.from_text(deep)
    with pytest.raises(ProtocolError, match="Expected the terms of a secure sum, but"):
        read_terms(deep, b"session", 5)
    record = json.loads(Offer(noisy("local"), 5).to_text())
    with pytest.raises(ValueError, match=r"Expected an offer .* dimension .*1073741824"):
        Offer.from_text(json.dumps({**record, "dimension": 2**30 + 1}))


def test_steps_are_remembered_where_a_state_is_lost(tmp_path):
    """Flower sends a reply before it keeps the state: if that fails, the old one comes back."""
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    for node, context in grid.contexts.items():
        context.node_config["randquant-ledger"] = str(tmp_path / f"{node}.json")
    second = []

    def lost(message):
        context = grid.contexts[message.metadata.dst_node_id]
        before = RecordDict(dict(context.state))
        assert grid.app(over_the_wire(message), context).has_content()
        context.state = before
        second.append(grid.app(over_the_wire(message), context))

    changed_request(grid, "upload", lost)
    with pytest.raises(RoundsFailed):
        run(QuantizedStrategy(fedavg(), exact(), patience=1), grid)
    assert len(second) == 5
    assert all("each step of a sum once" in reply.error.reason for reply in second)


def test_a_node_sets_its_own_delta():
    mechanism = noisy(cohort=5)
    limit = account([mechanism.release(650, 1)], 1e-5, quick=True).epsilon
    grid = InProcessGrid(client_app(QuantizeMod(1.01 * limit), mover), range(1, 6))
    grid.contexts[3].node_config["randquant-delta"] = 1e-9
    run(QuantizedStrategy(fedavg(), noisy(cohort=4)), grid, model(650))
    assert 3 in refusals(grid)


def spent(context):
    """How many answers a client has counted."""
    ledger = ClientLedger(RunAccountant(1e-5), context)
    with ledger.held():
        return ledger.accountant.answers(OWN)


def test_shares_that_do_not_open_cost_their_sender_its_part_and_others_nothing(caplog):
    def fault(step, node, reply):
        if step == "share" and node == 2:
            inbox = reply.content[INBOX]
            inbox.update({n: bytes(len(m)) for n, m in inbox.items() if n != "2"})
        return [reply]

    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6), fault)
    result = run(QuantizedStrategy(fedavg(), exact()), grid)
    np.testing.assert_allclose(result.arrays["w"].numpy(), mean_of([1, 3, 4, 5]), atol=1e-6)
    assert result.train_metrics_clientapp[1]["clients"] == 4
    assert not refusals(grid)
    assert [node for step, node, *_ in grid.seen if step == "confirm"] == [1, 3, 4, 5]
    warnings = [r.getMessage() for r in caplog.records if "randquant: client" in r.getMessage()]
    assert len(warnings) == 1
    assert "client 2: Expected shares that unseal" in warnings[0]


def test_shares_of_all_that_do_not_open_stop_a_client_before_it_is_charged():
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))

    def changed(message):
        inbox = message.content[INBOX]
        if message.metadata.dst_node_id == 3:
            inbox.update({n: bytes(len(m)) for n, m in inbox.items()})

    changed_request(grid, "upload", changed)
    found = run(QuantizedStrategy(fedavg(), exact()), grid).arrays["w"].numpy()
    np.testing.assert_allclose(found, mean_of([1, 2, 4, 5]), atol=1e-6)
    assert set(refusals(grid)) == {3}
    assert "or the server that relays, are at fault" in refusals(grid)[3]
    for node in range(1, 6):
        assert spent(grid.contexts[node]) == (node != 3)


def test_a_confirmation_that_does_not_fit_is_not_counted():
    def fault(step, node, reply):
        if step == "confirm" and node == 2:
            reply.content[INBOX].update({n: bytes(32) for n in reply.content[INBOX]})
        return [reply]

    found, grid, _ = one_round(exact(), fault=fault)
    np.testing.assert_allclose(found, mean_of(range(1, 6)), atol=1e-6)
    assert not refusals(grid)


# What the server makes of bad replies


def tampered(reply, change):
    content = reply.content
    data = content[PAYLOAD]["codes"].data
    record = wire_messages.payload_record(change(data), 5)
    reply.content = RecordDict({HEAD: content[HEAD], PAYLOAD: record})
    return reply


def flipped(data):
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def repacked(channel=EXACT, size=5, session=None, client=2):
    """Codes of something else, well packed."""

    def change(data):
        offer = Offer(ChannelMechanism(channel), size)
        form = wire_messages.upload_format(offer, session or b"another", client)
        return wire.pack(form, np.zeros(size, dtype=np.uint8))

    return change


OTHER = rq.stochastic_rounding(clip=2.0, levels=3, margin=0.0)
BAD_PAYLOADS = {
    "truncated": lambda data: data[:-1],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"\0",
    "bit-flipped": flipped,
    "another round": repacked(),
    "another channel": repacked(OTHER),
    "another dimension": repacked(size=6),
    "plain codes": lambda data: wire.pack(EXACT, np.zeros(5, dtype=np.uint8)),
}


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize("change", BAD_PAYLOADS.values(), ids=BAD_PAYLOADS)
def test_a_bad_payload_is_dropped_and_reported(trust, change):
    def fault(step, node, reply):
        return [tampered(reply, change) if step == "upload" and node == 2 else reply]

    found, _, _ = one_round(exact(trust), fault=fault)
    np.testing.assert_allclose(found, mean_of([1, 3, 4, 5]), atol=1e-6)


def test_codes_out_of_range_are_dropped():
    """Three levels take two bits: the fourth code means nothing."""
    session = []

    def fault(step, node, reply):
        if node != 2:
            return [reply]
        session.append(reply.content[HEAD]["session"])
        form = wire_messages.upload_format(Offer(exact("local"), 5), session[-1], 2)
        body = np.full(2, 0xFF, dtype=np.uint8)
        return [tampered(reply, lambda data: wire.frame(form, 5, body))]

    found, _, _ = one_round(exact("local"), fault=fault)
    np.testing.assert_allclose(found, mean_of([1, 3, 4, 5]), atol=1e-6)


def of(content):
    """A fault: client 2's upload has other content."""

    def fault(step, node, reply):
        if step == "upload" and node == 2:
            reply.content = RecordDict(content(reply.content))
        return [reply]

    return fault


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize(
    "content",
    [
        lambda c: {},
        lambda c: {"arrays": model()},
        lambda c: {HEAD: c[HEAD]},
        lambda c: {PAYLOAD: c[PAYLOAD]},
        lambda c: {HEAD: c[HEAD], PAYLOAD: model()},
        lambda c: {HEAD: ConfigRecord({"step": "reveal", "session": c[HEAD]["session"]}),
                   PAYLOAD: c[PAYLOAD]},
        lambda c: {HEAD: ConfigRecord({"step": "upload", "session": b"old"}), PAYLOAD: c[PAYLOAD]},
        lambda c: {HEAD: ConfigRecord({"step": 5, "session": 6.0}), PAYLOAD: c[PAYLOAD]},
    ],
)  # fmt: skip
def test_a_reply_of_another_kind_is_dropped(trust, content):
    found, _, _ = one_round(exact(trust), fault=of(content))
    np.testing.assert_allclose(found, mean_of([1, 3, 4, 5]), atol=1e-6)


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_a_duplicate_counts_once_and_a_replay_not_at_all(trust):
    old = {}

    def fault(step, node, reply):
        if step != "upload":
            return [reply]
        if node == 2 and 2 in old:
            return [old[2]]  # that of the round before
        if node == 2:
            old[2] = reply
        return [reply, reply] if node == 3 else [reply]

    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6), fault)
    strategy = QuantizedStrategy(fedavg(), exact(trust))
    arrays = model()
    result = run(strategy, grid, arrays, 2)
    wanted = mean_of(range(1, 6)) + mean_of([1, 3, 4, 5])
    np.testing.assert_allclose(result.arrays["w"].numpy(), wanted, atol=1e-6)
    assert [m["clients"] for m in result.train_metrics_clientapp.values()] == [5, 4]


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_a_reply_in_anothers_name_is_dropped(trust):
    def stranger(step, node, reply):
        if step == "upload" and node == 2:
            reply.metadata.__dict__["_src_node_id"] = 99
        return [reply]

    found, _, _ = one_round(exact(trust), fault=stranger)
    np.testing.assert_allclose(found, mean_of([1, 3, 4, 5]), atol=1e-6)

    def swapped(step, node, reply):
        if step == "upload" and node in (1, 2):
            reply.metadata.__dict__["_src_node_id"] = 3 - node
        return [reply]

    found, _, _ = one_round(exact(trust), range(1, 9), fault=swapped)
    np.testing.assert_allclose(found, mean_of(range(3, 9)), atol=1e-6)


def test_the_first_of_two_replies_counts():
    """A second one that is as good, and other: it would count for two."""
    held = []

    def fault(step, node, reply):
        if node != 3:
            return [reply]
        form = wire_messages.upload_format(
            Offer(exact("local"), 5), reply.content[HEAD]["session"], 3
        )
        held.append(over_the_wire(reply))
        other = wire.pack(form, np.full(5, 2, dtype=np.uint8))
        return [reply, tampered(held[0], lambda data: other)]

    found, _, _ = one_round(exact("local"), fault=fault)
    np.testing.assert_allclose(found, mean_of(range(1, 6)), atol=1e-6)


class Careless(FedAvg):
    """Asks whom it likes, whatever the grid says."""

    nodes: tuple[int, ...] = ()

    def configure_train(self, server_round, arrays, config, grid):
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, dst_node_id=n, message_type="train") for n in self.nodes]


@pytest.mark.parametrize("nodes", [(1, 2, 3, 3), (1, 2, 3, 99)])
def test_a_strategy_that_asks_twice_or_beyond_its_view_fails_the_round(nodes):
    inner = Careless(fraction_evaluate=0.0)
    inner.nodes = nodes
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    strategy = QuantizedStrategy(inner, exact(), patience=1)
    with pytest.raises(RoundsFailed, match="each client once in a round"):
        run(strategy, grid)
    assert not grid.seen


def test_failures_are_counted_in_a_row():
    def fault(step, node, reply):
        bad = step == "upload" and rounds_of(grid) in (1, 3)
        return [] if bad else [reply]

    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6), fault)
    strategy = QuantizedStrategy(fedavg(), exact(), patience=2)
    result = run(strategy, grid, rounds=4)
    assert list(result.train_metrics_clientapp) == [2, 4]
    assert result.train_metrics_clientapp[2]["dropped"] == 0


def test_too_few_for_the_guarantee_fail_the_round_and_keep_the_model(caplog):
    found, _, strategy = one_round(
        exact(cohort=5),
        fault=lambda step, node, reply: [] if step == "upload" and node == 2 else [reply],
    )
    assert not found.any()
    assert strategy.accountant.answers(1) == 1  # codes may have been sent all the same


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_all_clients_gone_is_a_clear_error_and_the_model_is_kept(trust, tmp_path):
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6), lambda step, node, reply: [])
    strategy = QuantizedStrategy(fedavg(), exact(trust), folder=tmp_path, patience=3)
    with pytest.raises(RoundsFailed, match="3 failures in a row, the last: Expected"):
        run(strategy, grid, rounds=9)
    healthy = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    if (tmp_path / "server.state").exists():
        again = QuantizedStrategy(fedavg(), exact(trust), folder=tmp_path)
        result = run(again, healthy, rounds=3)  # the third is tried again
        np.testing.assert_allclose(result.arrays["w"].numpy(), mean_of(range(1, 6)), atol=1e-6)


def test_a_step_that_diverges_is_not_taken():
    app = client_app(ANYTHING, lambda node, name, array: array.astype(np.float32) + 64)
    arrays = ArrayRecord({"w": Array(np.full(3, 65504, dtype=np.float16))})  # the largest
    far = ChannelMechanism(rq.stochastic_rounding(clip=64.0, levels=2, margin=0.0), "aggregate", 2)
    strategy = QuantizedStrategy(fedavg(), far, patience=1)
    with pytest.raises(RoundsFailed, match="training has diverged"):
        run(strategy, InProcessGrid(app, [1, 2]), arrays)


# The account, and going on after a restart


def test_epsilon_is_that_of_the_accountant_and_training_ends_before_the_limit():
    mechanism = noisy(cohort=5)
    cost = [account([mechanism.release(5, n)], 1e-5, quick=True).epsilon for n in range(1, 6)]
    strategy = QuantizedStrategy(fedavg(), mechanism, stop_at_epsilon=(cost[2] + cost[3]) / 2)
    result = run(strategy, InProcessGrid(client_app(ANYTHING, mover), range(1, 6)), rounds=9)
    assert [m["epsilon"] for m in result.train_metrics_clientapp.values()] == cost[:3]
    assert "before round 4" in strategy.stopped
    found = strategy.accountant.get_privacy_spent()
    assert found == account([mechanism.release(5, 3)], 1e-5)
    assert found.trust == "aggregate"


def test_clients_that_have_spent_their_epsilon_are_left_out_while_others_go_on():
    mechanism = noisy(cohort=3)
    limit = account([mechanism.release(5, 2)], 1e-5, quick=True).epsilon
    inner = fedavg(fraction_train=0.01, min_train_nodes=3, min_available_nodes=3)
    strategy = QuantizedStrategy(inner, mechanism, stop_at_epsilon=limit)
    result = run(strategy, InProcessGrid(client_app(ANYTHING, mover), range(1, 8)), rounds=20)
    counts = [strategy.accountant.answers(n) for n in range(1, 8)]
    assert max(counts) == 2
    assert sum(counts) == 3 * len(result.train_metrics_clientapp)
    assert sum(count < 2 for count in counts) < 3
    assert strategy.accountant.get_epsilon(1e-5) <= limit


def test_a_newcomer_may_be_anyone_who_is_gone():
    """A SuperNode that comes back has another number: what it has spent is not forgotten."""
    strategy = QuantizedStrategy(fedavg(), noisy())
    first = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    run(strategy, first, rounds=2)
    second = InProcessGrid(client_app(ANYTHING, mover), [2, 3, 4, 5, 77])
    result = run(strategy, second, rounds=1)
    assert strategy.accountant.answers(77) == 3
    cost = account([noisy().release(5, 3)], 1e-5, quick=True).epsilon
    assert result.train_metrics_clientapp[1]["epsilon"] == cost


def test_a_newcomer_may_be_someone_who_still_seems_to_be_there():
    """A SuperNode that was killed stays listed for a minute."""
    strategy = QuantizedStrategy(fedavg(), noisy())
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 6))
    run(strategy, grid, rounds=2)
    both = InProcessGrid(client_app(ANYTHING, mover), [*range(1, 6), 77])
    run(strategy, both, rounds=1)
    assert strategy.accountant.answers(77) == 3


def test_a_newcomer_inherits_the_most_of_each_offer():
    one, two = Offer(noisy(cohort=4), 5), Offer(noisy("local"), 5)
    accountant = RunAccountant(1e-5)
    accountant.compose(RoundEvent(one, frozenset({1})), 3)
    accountant.compose(RoundEvent(two, frozenset({1, 2})))
    accountant.compose(RoundEvent(two, frozenset({2})))
    accountant.meet([5])
    assert accountant.answers(5) == 3 + 2
    stable = RunAccountant(1e-5, stable=True)
    stable.load_state_dict(accountant.state_dict())
    stable.meet([6])
    assert stable.answers(6) == 0


def test_trust_is_that_of_all_clients():
    accountant = RunAccountant(1e-5)
    assert accountant.get_privacy_spent().epsilon == 0
    accountant.compose(RoundEvent(Offer(noisy("local"), 5), frozenset({1})), 9)
    assert accountant.get_privacy_spent().trust == "local"
    accountant.compose(RoundEvent(Offer(noisy(cohort=4), 5), frozenset({2})))
    assert accountant.get_privacy_spent().trust == "aggregate"


def test_one_process_at_a_time_trains_in_a_folder(tmp_path):
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 4))
    held = []

    def second(step, node, reply):
        if not held:
            held.append(1)
            with pytest.raises(BlockingIOError, match="another process is training it"):
                run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)
        return [reply]

    grid.fault = second
    run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)
    assert held


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAdam(fraction_evaluate=0.0, eta=0.1),
        lambda: FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.3, server_momentum=0.5),
        fedavg,
    ],
)
@pytest.mark.parametrize("killed_at", [("upload", 3), ("share", 3), ("reveal", 4), ("upload", 1)])
@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_not_been(make, killed_at, tmp_path):
    """The same steps bit for bit, and every round that was asked for is in the account."""
    step, number = killed_at
    whole = run(
        QuantizedStrategy(make(), exact()),
        InProcessGrid(client_app(ANYTHING, mover), range(1, 4)),
        rounds=5,
    )

    class Killed(BaseException):
        pass

    def fault(found, node, reply):
        if (found, rounds_of(grid)) == (step, number):
            raise Killed
        return [reply]

    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 4), fault)
    first = QuantizedStrategy(make(), exact(), folder=tmp_path)
    with pytest.raises(Killed):
        run(first, grid, rounds=5)
    grid.fault = None
    second = QuantizedStrategy(make(), exact(), folder=tmp_path)
    evaluated = []
    result = run(second, grid, rounds=5, evaluate_fn=lambda n, arrays: evaluated.append(n))
    assert np.array_equal(result.arrays["w"].numpy(), whole.arrays["w"].numpy())
    lost = step in ("upload", "reveal")
    assert second.accountant.answers(1) == 5 + lost
    assert evaluated == list(range(number - 1, 6))
    assert list(result.train_metrics_clientapp) == list(range(number, 6))
    third = QuantizedStrategy(make(), exact(), folder=tmp_path)
    assert np.array_equal(run(third, grid, rounds=5).arrays["w"].numpy(), whole.arrays["w"].numpy())


def rounds_of(grid):
    return sum(step == "advertise" and node == 1 for step, node, *_ in grid.seen)


def test_a_folder_of_another_run_is_refused(tmp_path):
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 4))
    run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)
    for other in (
        QuantizedStrategy(fedavg(), noisy(cohort=3), folder=tmp_path),
        QuantizedStrategy(FedAdam(fraction_evaluate=0.0), exact(), folder=tmp_path),
        QuantizedStrategy(fedavg(), exact(), folder=tmp_path, delta=1e-6),
    ):
        with pytest.raises(ValueError, match="Expected"):
            run(other, grid)
    good = (tmp_path / "server.state").read_bytes()
    for change in (
        lambda head: head["arrays"][0].__setitem__(0, "model/other"),
        lambda head: head["record"].update(rounds=-1),
        lambda head: head["record"].pop("accountant"),
        lambda head: head["record"].pop("offer"),
    ):
        (tmp_path / "server.state").write_bytes(with_head(good, change))
        with pytest.raises(ValueError, match="Expected"):
            run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)
    (tmp_path / "server.state").write_bytes(b"PK damaged")
    with pytest.raises(ValueError, match="Expected the state of a run"):
        run(QuantizedStrategy(fedavg(), exact(), folder=tmp_path), grid)


def with_head(data: bytes, change) -> bytes:
    """The same state with another head, and a right checksum."""
    size = int.from_bytes(data[40:48], "little")
    head = json.loads(data[48 : 48 + size])
    change(head)
    text = json.dumps(head).encode()
    body = len(text).to_bytes(8, "little") + text + data[48 + size :]
    return data[:8] + hashlib.sha256(body).digest() + body


def test_a_state_comes_back_as_it_was(tmp_path):
    path, strategy = tmp_path / "state", FedAdam()
    saved_state(path)
    record, model = state.load(path, strategy)
    assert record == {"rounds": 1}
    assert (model["w"].numpy() == np.arange(6.0).reshape(2, 3)).all()
    assert model["n"].numpy().shape == ()
    assert (strategy.m_t["w"] == np.arange(3.0)).all()
    assert (strategy.m_t["empty"].shape, strategy.m_t["empty"].dtype) == ((0, 2), ">f4")
    assert [part[0] for part in strategy.v_t] == list(range(12))
    strategy.m_t["w"] += 1  # it can be stepped with in place


def test_every_changed_byte_of_a_state_is_refused(tmp_path):
    data, path = saved_state(tmp_path / "state"), tmp_path / "damaged"
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(ValueError, match="Expected the state of a run in"):
            state.load(path, FedAdam())


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["arrays"][0].__setitem__(2, [10**12]),
        lambda head: head["arrays"][0].__setitem__(2, [-2, -3]),
        lambda head: head["arrays"][0].__setitem__(1, "|O8"),
        lambda head: head["arrays"][0].__setitem__(1, "<f8,<f8"),
        lambda head: head["arrays"][-1].__setitem__(0, "inner/aggregate_train/#0"),
        lambda head: head["arrays"][-1].__setitem__(0, "inner/eta/#0"),
        lambda head: head["arrays"][-1].__setitem__(0, "other"),
        lambda head: head["arrays"][-1].__setitem__(0, "model/w"),
        lambda head: head["arrays"].pop(),
        lambda head: head.update(record=[]),
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(change, tmp_path):
    path, strategy = tmp_path / "state", FedAdam()
    path.write_bytes(with_head(saved_state(path), change))
    before = dict(vars(strategy))
    with pytest.raises(ValueError, match="Expected the state of a run in"):
        state.load(path, strategy)
    assert vars(strategy) == before


def test_the_accountant_composes_what_clients_answered():
    one, two = Offer(noisy(cohort=4), 650), Offer(noisy("local"), 650)
    accountant = RunAccountant(1e-5, max_epsilon=20.0)
    accountant.compose(RoundEvent(one, frozenset({1, 2})), 2)
    assert accountant.get_epsilon(1e-5) == account([one.release(2, "replace_one", "aggregate")],
                                                   1e-5, quick=True).epsilon  # fmt: skip
    accountant.compose(RoundEvent(two, frozenset({2})))
    both = [
        one.mechanism.release(650, 2),
        dataclasses.replace(two.mechanism.release(650, 1), trust="aggregate"),
    ]
    assert accountant.get_epsilon(1e-5) == account(both, 1e-5, quick=True).epsilon
    assert accountant.get_privacy_spent() == account(both, 1e-5)
    assert accountant.num_releases == 3
    epsilon = accountant.get_epsilon(1e-7)
    delta = accountant.get_delta(epsilon)
    assert accountant.get_epsilon(delta) <= epsilon
    assert 0.97e-7 < delta < 1.02e-7
    assert accountant.get_delta(1e9) == 1e-300
    assert accountant.get_epsilon(accountant.get_delta(0.0)) == 0.0
    assert accountant.would_exceed(RoundEvent(two, frozenset({2})), max_epsilon=epsilon)
    assert not accountant.would_exceed(RoundEvent(two, frozenset({3})), max_epsilon=epsilon)

    copy = RunAccountant(1e-5)
    copy.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert copy.state_dict() == accountant.state_dict()
    assert copy.get_privacy_spent() == accountant.get_privacy_spent()
    with pytest.raises(ValueError, match="state of this accountant"):
        RunAccountant(1e-6).load_state_dict(accountant.state_dict())
    with pytest.raises(ValueError, match="state of this accountant"):
        copy.load_state_dict({**accountant.state_dict(), "offers": []})
    with pytest.raises(ValueError, match="Expected max_epsilon"):
        copy.would_exceed(RoundEvent(one, frozenset({1})))


@pytest.mark.parametrize(
    "mechanism",
    [
        exact(),
        noisy(),
        noisy("local"),
        VectorMechanism(NOISY, 2.0, norm="l1"),
        VectorMechanism(rq.rqm(clip=0.1, margin=0.1, levels=16, keep=0.42), 1.0, rotation_seed=5),
        ChannelMechanism(rq.pbm(clip=1.5, theta=0.2, trials=15), "aggregate", 40),
    ],
)
def test_an_offer_travels_whole(mechanism):
    offer = Offer(mechanism, 650)
    found = Offer.from_text(offer.to_text())
    assert found == offer
    assert found.digest == offer.digest
    assert found.mechanism.encode(np.zeros(650, np.float32), Key.from_seed(1)) == mechanism.encode(
        np.zeros(650, np.float32), Key.from_seed(1)
    )
    clients = 40
    assert 2 ** offer.bits(clients) > clients * (mechanism.channel.levels - 1)


def test_the_two_lines_of_the_docs_run():
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 3
    spaces = [{}, {}]
    for block, space in zip(blocks, [*spaces, spaces[1]], strict=True):
        exec(compile(block, "docs/flower.md", "exec"), space)
    assert spaces[1]["strategy"].parts == "head.*"
    assert spaces[1]["strategy"].mechanism.release(650, 1).trust == "aggregate"
    grid = InProcessGrid(spaces[0]["app"], [1, 2])
    fedavg().start(grid, model(), 1)  # no strategy of ours: nothing is sent
    assert len(refusals(grid)) == 2

"""Sums with a helper on Flower: one message from each client, and a helper over mutual TLS."""

import hashlib
import json
import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_rounds import (
    changed_terms,
    exact,
    grid_of,
    identify,
    mean_of,
    noisy,
    one_round,
    refusals,
)
from helper_process import started, told
from helper_sums import offered_terms
from tls import parties

import randquant as rq
from randquant.aggregation import AdditiveMechanism
from randquant.flower import (
    QuantizeMod,
    RemoteHelper,
    WithHelper,
)
from randquant.rounds import ClientLimits, Member, Offer, RoundsFailed, service, within
from randquant.secure_sums import (
    MAX_OFFER_BYTES,
    Helper,
    HelperLimits,
    HelperTerms,
    ProtocolError,
    write_request,
)

NODES = range(1, 6)


def public(identity):
    return identity.public_key().public_bytes_raw()


@pytest.fixture
def identity():
    return Ed25519PrivateKey.generate()


@pytest.fixture
def trusting(identity):
    """A mod of clients that know this helper."""
    return QuantizeMod(epsilon=math.inf, helper=public(identity).hex())


def trained(mod, helper, mechanism=None, **options):
    return one_round(mechanism or exact(), mod=mod, sums=WithHelper(helper), **options)


def test_one_message_from_each_client_gives_the_exact_mean(tmp_path, identity, trusting):
    weights, grid, strategy = trained(trusting, Helper(tmp_path, identity))
    assert np.allclose(weights, mean_of(NODES), atol=1e-6)
    assert sorted((step, node) for step, node, _, _ in grid.seen) == [("upload", n) for n in NODES]
    [row] = strategy.history
    assert row.dropped == 0
    assert row.upload_bytes - row.plain_bytes < 1300
    assert "the helper does not collude with the server" in strategy.accountant.summary()


def test_losing_all_but_two_clients_costs_nothing(tmp_path, identity, trusting):
    fault = lambda step, node, reply: [] if node > 2 else [reply]  # noqa: E731
    weights, _, strategy = trained(trusting, Helper(tmp_path, identity), fault=fault)
    assert np.allclose(weights, mean_of([1, 2]), atol=1e-6)
    assert strategy.history[0].dropped == 3


def test_a_server_may_demand_more_clients_of_a_sum_than_the_mechanism_does(tmp_path, identity):
    """Clients that count on colluders agree then, and a round of fewer fails."""
    mod = QuantizeMod(epsilon=math.inf, helper=public(identity).hex(), colluders=2)
    for lost in (1, 2):
        fault = lambda step, node, reply, lost=lost: [reply] if node > lost else []  # noqa: E731
        sums = WithHelper(Helper(tmp_path / str(lost), identity), least=4)
        weights, _, strategy = one_round(exact(), mod=mod, sums=sums, fault=fault)
        assert weights.any() == (lost == 1)
        assert ("4 clients or more" in strategy.history[0].failed) == (lost == 2)


def test_a_server_with_a_directory_leaves_out_who_does_not_sign(tmp_path, identity, trusting):
    """Its own directory: this helper has none."""
    grid = grid_of(trusting)
    known = {int(n): bytes.fromhex(key) for n, key in identify(grid, NODES, tmp_path).items()}
    grid.contexts[2].node_config.pop("randquant-identity")
    sums = WithHelper(Helper(tmp_path / "helper", identity), directory=known)
    weights, _, strategy = one_round(exact(), grid=grid, sums=sums)
    assert np.allclose(weights, mean_of({1, 3, 4, 5}), atol=1e-6)
    assert strategy.history[0].dropped == 1


def all_refuse(reason, mod, helper, *arguments, **options):
    weights, grid, strategy = trained(mod, helper, *arguments, **options)
    assert not weights.any()
    assert len(refusals(grid)) == len(NODES)
    assert all(reason in text for text in refusals(grid).values()), refusals(grid)
    return strategy


def test_a_client_sends_nothing_for_a_helper_that_it_does_not_know(tmp_path, identity):
    stranger = public(Ed25519PrivateKey.generate()).hex()
    for mod, reason in (
        (QuantizeMod(epsilon=math.inf), "this client trusts none"),
        (QuantizeMod(epsilon=math.inf, helper=stranger), "signed by the helper that this client"),
    ):
        strategy = all_refuse(reason, mod, Helper(tmp_path, identity))
        assert "Expected messages of 2 clients" in strategy.history[0].failed


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"least": 1}, "terms of a sum with a helper"),
        ({"bits": 1}, "it would wrap around"),
        ({"dimension": 9}, "of this round's offer"),
        ({"session": b"other".hex()}, "of this round's offer"),
        ({"offer": bytes(32).hex()}, "of this round's offer"),
        ({"cohort": 10**6}, "it would wrap around"),
        ({"key": {}}, "terms of a sum with a helper"),
    ],
)
def test_terms_that_a_client_must_not_agree_to_are_refused(
    fields, reason, tmp_path, identity, trusting
):
    all_refuse(
        reason, trusting, Helper(tmp_path, identity), change=changed_terms("upload", **fields)
    )


def test_a_sum_of_fewer_than_the_offer_counts_on_is_refused(tmp_path, identity, trusting):
    helper, change = Helper(tmp_path, identity), changed_terms("upload", least=2)
    all_refuse("a cohort of at most 2", trusting, helper, noisy(cohort=3), change=change)


@pytest.mark.parametrize("drawn", [True, False], ids=["flower", "nvflare"])
def test_on_every_engine_the_coordinates_are_those_that_the_helper_has_signed_for(
    drawn, tmp_path, identity
):
    log, offer = lambda level, line: None, Offer(replace(noisy(cohort=2), coordinates=2), 16)
    begun = WithHelper(Helper(tmp_path, identity)).begin(offer, [1, 2], log)
    limits = ClientLimits(math.inf, helper=public(identity).hex())
    member, request = Member(1, limits, {}, {}, log, drawn), begun.pending[1]
    arrays = {"w": np.zeros(16, np.float32)}
    assert member.agree(request, arrays).mechanism == begun._mechanism != offer.mechanism
    for proof in (b"", request.proof[:32] + bytes(64)):
        with pytest.raises(ProtocolError, match="have drawn together"):
            member.agree(replace(request, proof=proof), arrays)


class Unreachable:
    """A helper that is there until it is not."""

    def __init__(self, helper, after):
        self._helper, self.after = helper, after

    @property
    def key(self):
        if self.after < 0:
            raise ConnectionRefusedError("nobody listens")
        return self._helper.key

    def answer(self, request):
        if self.after == 0:
            raise TimeoutError("no answer")
        self.after -= 1
        return self._helper.answer(request)


def test_without_a_helper_nobody_is_asked(tmp_path, identity, trusting):
    helper, grid = Unreachable(Helper(tmp_path, identity), -1), grid_of(trusting)
    with pytest.raises(
        ValueError, match="Expected the helper of secure sums to answer, got an error: nobody"
    ):
        trained(trusting, helper, grid=grid)
    assert not grid.seen


def test_a_helper_that_is_lost_costs_its_rounds_and_nothing_else(tmp_path, identity, trusting):
    helper = Unreachable(Helper(tmp_path, identity), 1)
    with pytest.raises(RoundsFailed, match="no answer"):
        trained(trusting, helper, rounds=5, patience=2)
    helper.after = 9
    assert np.allclose(trained(trusting, helper)[0], mean_of(NODES), atol=1e-6)


def test_a_helper_that_has_started_again_takes_the_next_round(tmp_path, identity, trusting):
    class Restarting:
        helper, asked = Helper(tmp_path, identity), 0

        @property
        def key(self):
            return self.helper.key

        def answer(self, request):
            self.asked += 1
            if self.asked == 1:  # after clients have sealed to its first key
                self.helper = Helper(tmp_path, identity)
            return self.helper.answer(request)

    weights, _, strategy = trained(trusting, Restarting(), rounds=2)
    assert "started again" in strategy.history[0].failed
    assert np.allclose(weights, mean_of(NODES), atol=1e-6)
    assert strategy.accountant.answers(1) == 2  # both rounds are counted


def test_the_helpers_own_limit_leaves_clients_out(tmp_path, identity, trusting):
    helper = Helper(tmp_path, identity, HelperLimits(most_sums=2))
    _, _, strategy = trained(trusting, helper, rounds=3)
    assert [bool(row.failed) for row in strategy.history] == [False, False, True]
    assert "within the helper's limits, got 0" in strategy.history[2].failed


def terms_for(offer, folder):
    key = Helper(folder, Ed25519PrivateKey.generate(), suite="X25519").key
    return offered_terms(key, offer, 9, 3)


def digest_of(text):
    return hashlib.sha256(text.encode()).digest()


def test_a_helper_limits_epsilon_by_the_offers_that_it_is_shown(tmp_path):
    offer = Offer(AdditiveMechanism("skellam", 1.0, 4.0, 3, bits=8), 5)
    text, terms = terms_for(offer, tmp_path)
    one = rq.account([offer.release(1, "replace_one", "aggregate")], 1e-5).epsilon
    assert within(1.2 * one)(terms, {text: 1}, print)
    assert not within(1.2 * one)(terms, {text: 2}, print)
    assert not within(1e9)(terms, {text: 1, "": 1}, print)  # a sum of an unknown offer
    assert not within(1e9)(replace(terms, least=2), {text: 1}, print)  # fewer than it counts on
    assert within(math.inf)(terms, {text: 10**6}, print)
    # A server's word that a client has a million examples must not make its epsilon small.
    for each in (offer, replace(offer, examples=10**6)):
        text, terms = terms_for(each, tmp_path)
        assert not within(0.9 * one)(terms, {text: 1}, print)
        assert within(0.9 * one, examples=10)(terms, {text: 1}, print)


def other_texts(text):
    """The same offer in texts that are longer, or say more."""
    record = json.loads(text)
    yield text + " " * 9
    yield json.dumps(record, sort_keys=True, indent=1)
    yield json.dumps(dict(reversed(record.items())))
    yield text.replace("{", '{"dimension": 7, ', 1)  # the later one counts
    for name in ("channel", "certificate"):
        record = json.loads(text)
        place = record["channel"] if name == "channel" else record["channel"]["certificate"]
        place["more"] = "x" * 300
        yield json.dumps(record, sort_keys=True)


def test_a_helper_takes_offers_only_as_this_package_writes_them(tmp_path):
    """It keeps each text: one offer in many long ones would fill its disk and everybody's time."""
    channel = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)
    offer = Offer(rq.VectorMechanism(channel, 1.0, trust="aggregate", cohort=3), 5)
    text, terms = terms_for(offer, tmp_path)
    assert within(math.inf)(terms, {text: 1}, print)
    record = json.loads(text)
    record["channel"]["certificate"]["epsilon"]["upper"] += 1e-12  # by another machine
    near = json.dumps(record, sort_keys=True)
    assert within(math.inf)(replace(terms, offer=digest_of(near)), {near: 1}, print)
    for other in other_texts(text):
        with pytest.raises(ProtocolError, match="Expected an offer"):
            within(math.inf)(replace(terms, offer=digest_of(other)), {other: 1}, print)


def test_an_offer_that_is_too_long_for_a_helper_is_asked_of_nobody(
    tmp_path, identity, trusting, monkeypatch
):
    helper, grid = Helper(tmp_path, identity), grid_of(trusting)
    monkeypatch.setattr("randquant.rounds.sums.MAX_OFFER_BYTES", 100)
    with pytest.raises(RoundsFailed, match="an offer of 100 characters at most"):
        trained(trusting, helper, grid=grid, patience=1)
    assert not grid.seen
    text = "x" * (MAX_OFFER_BYTES + 1)
    terms = HelperTerms(b"s", helper.key, 9, 3, 5, 8, digest_of(text))
    with pytest.raises(ProtocolError, match=f"{MAX_OFFER_BYTES} bytes at most, got"):
        helper.answer(write_request(terms, {}, text))


@pytest.fixture
def served(tmp_path, identity):
    """A service of a helper, and how the server reaches it."""
    own, server, *_ = parties(tmp_path / "tls", "helper", "server")
    running, port = service(Helper(tmp_path / "helper", identity), "localhost:0", own)
    running.start()
    yield f"localhost:{port}", server
    running.stop(grace=None).wait()


def test_a_round_over_mutual_tls(served, trusting, tmp_path, identity):
    address, tls = served
    weights, _, _ = trained(trusting, RemoteHelper(address, tls), rounds=2)
    assert np.allclose(weights, 2 * mean_of(NODES), atol=1e-6)
    with pytest.raises(ProtocolError, match=r"^The helper: Expected a request to a helper"):
        RemoteHelper(address, tls).answer(b"nonsense")
    with pytest.raises(OSError, match="Expected an address to listen on"):
        service(Helper(tmp_path / "other", identity), address, *parties(tmp_path / "2", "helper"))


def test_a_helper_that_is_starting_is_waited_for(tmp_path, identity):
    own, tls = parties(tmp_path / "tls", "helper", "server")
    running, port = service(Helper(tmp_path / "helper", identity), "localhost:0", own)
    later = threading.Timer(0.2, running.start)
    later.start()
    RemoteHelper(f"localhost:{port}", tls).key.check(public(identity))
    later.join()
    running.stop(grace=None).wait()


@pytest.mark.slow
def test_a_server_that_the_authority_does_not_know_is_not_heard(served, tmp_path):
    address, tls = served
    [stranger] = parties(tmp_path / "others", "server")
    half = replace(stranger, authority=tls.authority)  # knows the helper, is unknown to it
    for files in (stranger, half):
        with pytest.raises(OSError, match=address):
            _ = RemoteHelper(address, files, timeout=1).key


@pytest.mark.slow
def test_the_command_serves_is_killed_and_started_again(tmp_path, identity, capfd):
    """Real processes: a helper killed between two rounds; its account is on its disk."""
    own, tls = parties(tmp_path / "tls", "helper", "server")
    mod = QuantizeMod(epsilon=math.inf, helper=told("keygen", tmp_path / "id")["identity"])
    for number in (1, 2):
        journal = f"(journal {tmp_path / 'journal'}, of {0 if number == 1 else 5} clients)"
        with started(tmp_path, own, journal) as (process, address):
            weights, _, _ = trained(mod, RemoteHelper(address, tls))
            assert np.allclose(weights, mean_of(NODES), atol=1e-6)
            if number == 1:
                process.kill()
                process.wait()
    status = told("status", tmp_path / "journal")
    assert status == {"clients": 5, "most_sums": 2, "by_sums": {"2": 5}}


@pytest.mark.parametrize("helped", [True, False], ids=["helper", "among clients"])
def test_integer_noise_is_summed_as_codes_are(tmp_path, identity, trusting, helped):
    """Noise of all clients together: each sends numbers modulo a power of two."""
    noise = AdditiveMechanism("skellam", clip_norm=30.0, noise_multiplier=2e-3, cohort=4, bits=20)
    sums = {"sums": WithHelper(Helper(tmp_path, identity))} if helped else {}
    weights, _, strategy = one_round(noise, mod=trusting, **sums)
    assert np.allclose(weights, mean_of(NODES), atol=0.05)
    assert np.abs(weights - mean_of(NODES)).max() > 0
    whole = rq.account([noise.release(weights.size, 1)], strategy.accountant.delta)
    told = strategy.accountant.get_epsilon(strategy.accountant.delta)
    assert told == pytest.approx(whole.epsilon)

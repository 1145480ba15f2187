"""Flower: a server that invents all other clients of a sum, and sees the exact codes of one."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flower_rounds import NOISY, exact, grid_of, identify, model, noisy, one_round, refusals
from flwr.app import ConfigRecord, Message, RecordDict
from lower_ends import lower_end

from randquant._internal import round_up
from randquant.aggregation import VectorMechanism
from randquant.channels import wire
from randquant.integrations import QuantizeMod
from randquant.integrations.flower import messages, mod
from randquant.privacy import VectorRelease, account
from randquant.rounds import AmongClients, Offer, RoundMessage
from randquant.secure_sums import (
    Advert,
    Client,
    add_masks,
    mask_dtype,
    masked_format,
    masking_key,
    masking_private,
    pair_context,
    seal,
    sealing_key,
    self_masking_key,
    unseal,
)
from randquant.secure_sums.secagg import crypto
from randquant.secure_sums.secagg.crypto import PART_BYTES, context

DOCS = Path(__file__).parents[2] / "docs" / "flower-security.md"
VICTIM, DIMENSION, ROUNDS = 1, 1000, 3
FEW = VectorMechanism(NOISY, 1.0, "aggregate", 8)
DOCUMENTED = VectorMechanism(NOISY, 1.0, "aggregate", 400)
"""Of a sum in which all clients but one are invented; the figures of the latter are in the docs."""


@pytest.mark.slow
def test_what_a_server_learns_that_invents_all_others_is_in_the_log_and_can_be_limited(
    monkeypatch, caplog
):
    """Its log, which was empty, says what 0.722 assumes, and that 22.8 is left."""
    caplog.set_level(logging.INFO, logger="flwr")
    sent = sent_codes(monkeypatch)
    grid = of_victim(QuantizeMod(epsilon=8.0))
    learnt = [codes_seen_by_an_inventor(grid, DOCUMENTED) for _ in range(ROUNDS)]
    for seen, codes in zip(learnt, sent, strict=True):
        np.testing.assert_array_equal(seen, codes)
    stated, alone = figures(ROUNDS, DOCUMENTED)
    assert (round_up(stated, 3), round_up(alone, 3)) == ("0.723", "22.9")
    assert lower_end([in_a_sum_of_one(ROUNDS)], 1e-5) > 20
    said = [record.getMessage() for record in caplog.records if "answers" in record.getMessage()]
    others = [
        account([release], 1e-5, quick=True).epsilon
        for release in (DOCUMENTED.release(DIMENSION, ROUNDS, "zero_out"),
                        in_a_sum_of_one(ROUNDS, "zero_out"))
    ]  # fmt: skip
    assert said[-1] == (
        f"randquant: this client's answers so far: epsilon <= {round_up(stated)} "
        f"(<= {round_up(others[0])} under zero_out) at delta = 1e-05 if every sum has at least 399 "
        f"honest others, and epsilon <= {round_up(alone)} (<= {round_up(others[1])} under "
        "zero_out) if all others are invented; without a directory this client cannot know that "
        "the other clients exist."
    )
    assert said[-1] in " ".join(DOCS.read_text().split())


def test_a_limit_of_what_is_left_alone_ends_it_before_anything_is_charged(monkeypatch):
    sent = sent_codes(monkeypatch)
    grid = of_victim(QuantizeMod(epsilon=8.0, epsilon_alone=figures(2)[1]))
    for _ in range(2):
        codes_seen_by_an_inventor(grid)
    before = dict(grid.contexts[VICTIM].state["randquant.spent"])
    with pytest.raises(Refused, match="this client's limit if all other clients are invented, got"):
        codes_seen_by_an_inventor(grid)
    assert len(sent) == 2
    assert dict(grid.contexts[VICTIM].state["randquant.spent"]) == before
    assert round_up(figures(3)[1]) in refusals(grid)[VICTIM]


def test_a_node_sets_its_own_limit_of_what_is_left_alone():
    grid = of_victim(QuantizeMod(epsilon=8.0))
    grid.contexts[VICTIM].node_config["randquant-epsilon-alone"] = 0.9 * figures(1)[1]
    with pytest.raises(Refused, match=r"within epsilon .* if all other clients are invented"):
        codes_seen_by_an_inventor(grid)


@pytest.mark.parametrize("named", [{VICTIM}, set(range(1, FEW.cohort + 1))])
def test_clients_that_a_directory_does_not_name_or_that_cannot_sign_are_refused(
    named, tmp_path, monkeypatch
):
    """The server knows all public keys; it may invent numbers, or take those of real clients."""
    sent, grid = sent_codes(monkeypatch), of_victim(QuantizeMod(epsilon=8.0))
    identify(grid, named, tmp_path)
    with pytest.raises(Refused, match=r"Expected keys signed by client 2, (got|which)"):
        codes_seen_by_an_inventor(grid)
    assert sent == []


def test_the_log_says_what_a_client_with_a_directory_knows_of_the_others(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    for options, expected in (
        ({}, "; its directory names all others in this sum."),
        (
            {"sums": AmongClients(neighbours=2)},
            "; it shares masks with some of the others only, and does not know",
        ),
    ):
        grid = grid_of(QuantizeMod(8.0, all_neighbours=False))
        identify(grid, grid.contexts, tmp_path)
        caplog.clear()
        one_round(noisy(cohort=4), grid=grid, **options)
        mod.log_once.cache_clear()
        assert sum(expected in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("mechanism", "assumed"),
    [
        (noisy("local"), "whoever the other clients are."),
        (exact(), "if every sum has at least 1 honest other, and no guarantee if all others"),
    ],
)
def test_what_a_figure_assumes_follows_from_the_offer(mechanism, assumed, caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    one_round(mechanism)
    said = [record.getMessage() for record in caplog.records]
    assert sum("answers so far" in each and assumed in each for each in said) == 1  # alike


class Refused(Exception):
    """The victim's answer is an error."""


def of_victim(mod):
    return grid_of(mod, [VICTIM])


def in_a_sum_of_one(rounds, neighboring="replace_one"):
    return VectorRelease(NOISY, 1.0, FEW.size(DIMENSION), rounds, neighboring=neighboring)


def figures(rounds, mechanism=FEW):
    """(what the account states, what is true of the codes alone), each as a client computes it."""
    stated = account([mechanism.release(DIMENSION, rounds)], 1e-5, quick=True).epsilon
    return stated, account([in_a_sum_of_one(rounds)], 1e-5, quick=True).epsilon


def sent_codes(monkeypatch):
    """A list that gets the codes which a client is about to mask."""
    sent, mask = [], Client.mask

    def spied(self, vector, sealed):
        sent.append(vector.astype(np.int64))
        return mask(self, vector, sealed)

    monkeypatch.setattr(Client, "mask", spied)
    return sent


def codes_seen_by_an_inventor(grid, mechanism=FEW):
    """Play one sum with the victim and other clients, all of which the server has invented.

    Returns:
        The victim's codes, from what the server has received.
    """
    offer, clients = Offer(mechanism, DIMENSION), range(1, mechanism.cohort + 1)
    handshake = AmongClients().begin(offer, clients, lambda *_: None)
    terms = handshake.terms

    def ask(request, others=()):
        content = RecordDict({**messages.records(request), **dict(others)})
        message = Message(content, dst_node_id=VICTIM, message_type="train")
        (reply,) = grid.send_and_receive([message])
        if reply.has_error():
            raise Refused(reply.error.reason)
        return messages.read(reply.content)

    own = Advert.from_bytes(ask(handshake.pending[VICTIM]).inbox[VICTIM])
    secrets = {
        n: (X25519PrivateKey.generate(), crypto.random_scalar()) for n in terms.clients if n > 1
    }
    point = crypto.base(crypto.random_scalar())
    adverts = {
        n: Advert(sealing.public_key().public_bytes_raw(), crypto.base(masking), point)
        for n, (sealing, masking) in secrets.items()
    }
    told = {n: advert.to_bytes() for n, advert in adverts.items()}
    dealt = ask(RoundMessage("share", terms.session, inbox=told)).inbox
    seeds, pairs, inbox = {}, {}, {}
    for n, (sealing, masking) in secrets.items():
        pair = pair_context(terms, {VICTIM: own, n: adverts[n]})
        key = sealing_key(sealing, own.sealing, pair)
        pairs[n] = masking_key(masking_private(masking), own.masking, pair)
        shares = unseal(key, dealt[n], context(terms, VICTIM, n))
        seeds[terms.share_place(VICTIM, n)] = crypto.read_scalar(shares[:PART_BYTES])
        inbox[n] = forged(terms, n, key)
    train = {"arrays": model(DIMENSION), "config": ConfigRecord({})}
    packed = ask(RoundMessage("upload", terms.session, inbox=inbox), train).payload
    form = masked_format(terms, VICTIM)
    total = wire.unpack(form, packed, terms.dimension).astype(mask_dtype(terms.bits))
    seed = crypto.combine(seeds, {0} | seeds.keys())
    own_mask = self_masking_key(seed, context(terms, VICTIM, VICTIM))
    for secret in (own_mask, *pairs.values()):
        add_masks(total, [secret], -1)
    return (total & ((1 << terms.bits) - 1)).astype(np.int64)


def forged(terms, dealer, key):
    """Two shares of no secret for the victim, which fit what they are said to be."""
    challenge = 1
    shares, values = ([crypto.random_scalar() for _ in range(2)] for _ in range(2))
    committed = b"".join(
        crypto.commitment(
            context(terms, dealer, VICTIM) + bytes([kind]),
            share,
            (value - challenge * share) % crypto.ORDER,
        )
        for kind, (share, value) in enumerate(zip(shares, values, strict=True))
    )
    numbers = [crypto.scalar_bytes(number) for number in (challenge, *values)]
    proof = numbers[0] + committed + b"".join(numbers[1:])
    both = b"".join(map(crypto.scalar_bytes, shares))
    return proof + seal(key, both, context(terms, dealer, VICTIM))

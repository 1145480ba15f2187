"""Rounds on Flower whose clients prove their codes valid, and one that sends what it likes."""

import math

import numpy as np
import pytest
from flower_rounds import changed_terms, exact, grid_of, mean_of, noisy, one_round, refusals
from helper_process import proven_in_a_process, started, told
from helper_sums import IDENTITY, PINNED, helper_in
from pages import Page
from proven_sums import lie
from tls import keep, parties

from randquant.aggregation import AdditiveMechanism
from randquant.channels import wire
from randquant.flower import QuantizeMod, RemoteHelper, WithHelper
from randquant.integrations import HEAD, payload_record
from randquant.integrations.flower.messages import PAYLOAD
from randquant.reports.flower import page
from randquant.rounds import Offer, sums
from randquant.secure_sums import HelperTerms, masked_message
from randquant.secure_sums.helper import proven

NODES = range(1, 6)
HOSTILE = 3
HONEST = [node for node in NODES if node != HOSTILE]
MOD = QuantizeMod(epsilon=math.inf, helper=PINNED.hex())


@pytest.fixture
def helper(tmp_path):
    return helper_in(tmp_path)


def trained(helper, integrity="proven", mechanism=None, attack=None, **options):
    """(model, grid, strategy) of rounds in which `attack` makes the hostile client's message."""

    def fault(step, node, reply):
        if node == HOSTILE and attack is not None:
            _, _, request, _ = grid.seen[-1]
            terms = HelperTerms.from_text(request.content[HEAD]["terms"])
            reply.content[PAYLOAD] = payload_record(attack(terms))
        return [reply]

    of_grid = {name: options.pop(name) for name in ("train", "change") if name in options}
    grid = grid_of(MOD, fault=fault, **of_grid)
    way = WithHelper(helper, integrity=integrity)
    return one_round(mechanism or exact(), grid=grid, sums=way, **options)


def without_the_hostile(caplog, reason, helper, attack):
    """Its message is left out, and it is named."""
    weights, _, strategy = trained(helper, attack=attack)
    assert np.allclose(weights, mean_of(HONEST), atol=1e-6)
    assert strategy.history[0].dropped == 1
    assert reason in caplog.text


def test_honest_clients_prove_their_codes_and_the_mean_is_exact(helper):
    """In each round with a verification key of its own."""
    weights, grid, strategy = trained(helper, rounds=2)
    assert np.allclose(weights, 2 * mean_of(NODES), atol=1e-6)
    assert [row.dropped for row in strategy.history] == [0, 0]
    every = [HelperTerms.from_text(request.content[HEAD]["terms"]) for *_, request, _ in grid.seen]
    assert every[0].largest == 2
    assert len({terms.commitment for terms in every}) == 2
    sent = len(grid.seen[0][-1].content[PAYLOAD]["codes"].data)
    assert strategy.history[0].upload_bytes == sent == proven.message_bytes(every[0])


@pytest.mark.parametrize("entries", [[2] * 10, [0, -1] * 5, list(range(100, 110))])
def test_a_client_that_sends_what_is_no_code_is_left_out_and_named(entries, helper, caplog):
    """Two bits are a code of three levels; the client proves for others in their place."""
    without_the_hostile(caplog, NO_CODES, helper, lambda terms: lie(terms, HOSTILE, entries))
    assert helper.sums == dict.fromkeys(HONEST, 1)  # it has released nothing


NO_CODES = f"client {HOSTILE}: Expected codes that are proven valid"


def test_a_message_without_proofs_is_refused_by_its_length(helper, caplog):
    reason = f"of client {HOSTILE} to 'upload' dropped: Client {HOSTILE}: Expected a message"
    without_the_hostile(caplog, reason, helper, lambda terms: b"RQH1" + bytes(100))


def down(node, name, array):
    """The update -1 in all coordinates: code 0."""
    return array - 1


def ten(terms):
    """Ten in the place of each code, which are 0 to 2."""
    return masked_message(terms, HOSTILE, np.full(terms.dimension, 10, np.uint8), PINNED)


def highest(terms):
    """The most that a code can do."""
    return proven.proven_message(terms, HOSTILE, np.full(terms.dimension, 2, np.uint8), PINNED)


def test_masks_let_one_client_decide_the_mean_and_proofs_do_not(helper, caplog):
    """All others send -1. The channel's values are -1, 0 and 1."""
    masked, _, strategy = trained(helper, "masked", attack=ten, train=down)
    # Moved by 2 and by 0.4 in each of five coordinates.
    told = "one hostile client of 5 moves the mean by at most 0.895 (l2) by valid codes, 4.48 by"
    assert told in caplog.text
    assert f"O{told[1:]}" in Page(page(strategy.outcome())).words
    assert np.allclose(masked, 1.0, atol=1e-6)  # moved by the whole range, as if all had sent 1
    refused, _, _ = trained(helper, attack=lambda terms: lie(terms, HOSTILE, [5] * 10), train=down)
    assert np.allclose(refused, -1.0, atol=1e-6)
    valid, _, _ = trained(helper, attack=highest, train=down)
    assert np.allclose(valid, -1 + 2 / 5, atol=1e-6)  # its own code's share, and no more


@pytest.mark.parametrize("largest", [1, 3, 0])
def test_a_server_that_changes_the_largest_code_is_refused(largest, helper):
    """With a smaller one a client would fail where its codes are larger, and so tell."""
    weights, grid, _ = trained(helper, change=changed_terms("upload", largest=largest))
    assert not weights.any()
    assert len(refusals(grid)) == len(NODES)
    reason = "proofs of codes up to 2" if largest else "terms of a sum with a helper"
    assert all(reason in text for text in refusals(grid).values()), refusals(grid)


def test_rotated_codes_and_drawn_coordinates_are_proven_too(helper):
    _, grid, strategy = trained(helper, mechanism=noisy(cohort=3), rounds=2)
    assert [row.failed for row in strategy.history] == ["", ""]
    assert not refusals(grid)


def round_of(helper, mechanism, clients, dimension):
    way = WithHelper(helper, integrity="proven")
    return way.begin(Offer(mechanism, dimension), range(clients), lambda level, line: None)


def test_a_proven_sum_is_taken_in_a_modulus_that_cannot_wrap(helper):
    """Of codes beyond what honest clients send in a sum, which hostile ones may send: all ones."""
    mechanism = noisy(cohort=3)
    now = round_of(helper, mechanism, 1000, 2**12)
    assert Offer(mechanism, 2**12).sum_bits(1000) < now.terms.bits == wire.sum_bits(2, 1000)
    now._totals, now.clients = np.full(2**12, 1000), 1000
    first, step = mechanism.channel.lattice
    wanted = math.sqrt(2**12) * (first + step)
    assert math.isclose(np.linalg.norm(now.mean().astype(float)), wanted, rel_tol=1e-5)


def test_an_answer_may_be_as_long_as_a_signed_message(helper):
    now = round_of(helper, exact(), 5, 1000)
    message = proven.message_bytes(now.terms) + 64
    assert message + sums.EXTRA_BYTES == now.most
    assert message > 8 * 2 * 1000  # 8 bytes for each bit


def test_codes_that_cannot_be_proven_are_refused_before_round_1(helper):
    noise = AdditiveMechanism("skellam", clip_norm=1.0, noise_multiplier=4.0, cohort=2)
    with pytest.raises(ValueError, match="Expected codes of a channel with integrity='proven'"):
        WithHelper(helper, integrity="proven").fewest(noise)
    assert WithHelper(helper).fewest(noise) == 2
    with pytest.raises(ValueError, match="Expected integrity to be"):
        WithHelper(helper, integrity="checked")


@pytest.mark.slow
def test_proofs_over_tls_with_processes_of_their_own(tmp_path, caplog):
    """A helper and a client as processes; then a report that is crafted, in the client's place."""
    own, tls = parties(tmp_path / "tls", "helper", "server")
    keep(tmp_path / "id", IDENTITY)
    with started(tmp_path, own) as (_, address):
        remote = RemoteHelper(address, tls)
        weights, _, _ = trained(
            remote, attack=lambda terms: proven_in_a_process(terms, HOSTILE, 2, PINNED)
        )
        wanted = (len(HONEST) * mean_of(HONEST) + 1) / len(NODES)  # code 2 is the value 1
        assert np.allclose(weights, wanted, atol=1e-6)
        assert "proven valid" not in caplog.text
        lies = lambda terms: lie(terms, HOSTILE, [2] * 10)  # noqa: E731
        without_the_hostile(caplog, NO_CODES, remote, lies)
    assert told("status", tmp_path / "journal")["by_sums"] == {"1": 1, "2": 4}

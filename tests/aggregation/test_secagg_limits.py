"""Terms and messages of secure sums at their limits, recomputed where they are derived."""

import hmac

import pytest
from secure_sums import Round, terms_of

from randquant.aggregation.secagg.messages import NUMBER_BYTES
from randquant.aggregation.secagg.terms import ProtocolError, Terms


@pytest.mark.parametrize(("count", "neighbours"), [(5, 2), (9, 4), (12, 10), (300, 20), (257, 256)])
def test_neighbours_are_the_nearest_on_a_ring_that_the_terms_determine(count, neighbours):
    """By hand: clients in the order of an HMAC of their numbers in eight bytes."""
    clients = (*range(count - 1), 2**64 - 1)
    terms = Terms(b"ring", clients, 5, 8, 2, neighbours)
    place = lambda c: hmac.digest(terms.digest, c.to_bytes(8, "big"), "sha256")  # noqa: E731
    ring = sorted(clients, key=place)
    for index in (0, 1, count // 2, count - 1):
        steps = [*range(1, neighbours // 2 + 1)]
        near = {ring[(index + sign * step) % count] for step in steps for sign in (-1, 1)}
        assert terms.neighbours_of(ring[index]) == tuple(sorted(near))
    assert len(Terms(b"all", clients, 5, 8, 2, count - 1).neighbours_of(0)) == count - 1


@pytest.mark.parametrize("count", range(2, 13))
def test_two_groups_that_can_remove_a_mask_share_a_client(count):
    """The thresholds that terms accept where all are neighbours: from more than half on."""
    degree, accepted = count - 1, []
    for threshold in range(1, degree + 2):
        try:
            terms = Terms(b"s", tuple(range(count)), 5, 8, 2, degree, threshold)
        except ValueError:
            continue
        accepted.append(threshold)
        spare = terms.neighbours - terms.threshold  # so many may accuse or leave in all
        assert 2 * terms.most_accusers <= spare + 1 < 2 * (terms.most_accusers + 1)
    assert accepted == [t for t in range(1, degree + 1) if 2 * t > degree]


def test_terms_at_their_limits():
    facts = {"session": b"s", "clients": (3, 7), "dimension": 1, "bits": 1, "least": 2}
    assert Terms(**facts).neighbours == 1
    for change in ({"bits": 32}, {"dimension": 2**40}, {"clients": (0, 2**64 - 1)}):
        Terms(**{**facts, **change})
    for change, match in (
        ({"bits": 0}, "bits"), ({"bits": 33}, "bits"), ({"dimension": 2**40 + 1}, "dimension"),
        ({"clients": (3,)}, "two clients or more"), ({"clients": (0, 2**64)}, "client"),
        ({"least": 1}, "least"), ({"least": 3}, "least"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            Terms(**{**facts, **change})
    assert len(Terms(**{**facts, "clients": tuple(range(2**16))}).clients) == 2**16


def test_of_many_wrong_dealers_nine_are_named():
    played = Round(terms_of(15))
    inbox = {
        n: message[:-1] + bytes([message[-1] ^ 1]) for n, message in played.shared()[0].items()
    }
    vector = played.vectors[0]
    with pytest.raises(ProtocolError, match=r"from clients \[1, 2, 3, 4, 5, 6, 7, 8, 9\] do not"):
        played.clients[0].mask(vector, inbox)


def test_a_client_that_shares_with_too_few_is_left_out():
    """It leaves out one neighbour, or its commitments: an excuse, and the others go on."""
    for gone in (2, 3):

        def up(step, client, message, gone=gone):
            if (step, client) == ("share", 2):
                return {n: part for n, part in message.items() if n != gone}
            return message

        played = Round(terms_of(6), up=up)
        assert played.exact()
        assert played.survivors == frozenset({0, 1, 3, 4, 5})
        assert played.server.refused[2] == "Expected shares for all neighbours, got others."


def test_a_payload_is_no_longer_than_all_accusations():
    played = Round(terms_of(4))
    payload = played.clients[1].mask(played.vectors[1], played.shared()[1])
    assert played.server._read(1, payload)[1] == frozenset()
    for more in (NUMBER_BYTES * 3 + 1, NUMBER_BYTES * 4):
        with pytest.raises(ProtocolError, match=f"masked vector in {len(payload)} bytes, got"):
            played.server._read(1, payload + bytes(more))

"""Terms and messages of secure sums at their limits, recomputed where they are derived."""

import hmac

import pytest

from randquant.secure_sums import Terms


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
        assert terms.client_neighbours(ring[index]) == tuple(sorted(near))
    assert len(Terms(b"all", clients, 5, 8, 2, count - 1).client_neighbours(0)) == count - 1


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


FACTS = {"session": b"s", "clients": tuple(range(8)), "dimension": 4, "bits": 8, "least": 3}
LIMITS = (
    {"bits": 1}, {"bits": 32}, {"dimension": 1}, {"dimension": 2**40}, {"least": 2}, {"least": 8},
    {"clients": (0, 3, 2**64 - 1)}, {"clients": (3, 7), "least": 2},
    {"clients": tuple(range(2**16))}, {"clients": tuple(range(2**12 + 1)), "neighbours": 2**12},
)  # fmt: skip


def test_terms_at_their_limits_are_accepted():
    for change in LIMITS:
        terms = Terms(**{**FACTS, **change})
        assert terms.neighbours < len(terms.clients) == len({**FACTS, **change}["clients"])


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"clients": (1,)}, "two clients or more"), ({"clients": (1, 2, 2)}, "none twice"),
        ({"clients": (1, 2, -1)}, "client"), ({"clients": (0, 1, 2**64)}, "client"),
        ({"clients": tuple(range(2**16 + 1))}, "Expected"),
        ({"clients": tuple(range(2**12 + 2)), "neighbours": 2**12 + 1}, "Expected"),
        ({"bits": 0}, "bits"), ({"bits": 33}, "bits"),
        ({"dimension": 0}, "dimension"), ({"dimension": 2**40 + 1}, "dimension"),
        ({"least": 1}, "least"), ({"least": 9}, "least"), ({"session": "text"}, "session"),
        ({"offer": "text"}, "offer"), ({"offer": bytes(31)}, "offer"),
        ({"neighbours": 5}, "even"), ({"neighbours": 4, "threshold": 2}, "threshold"),
        ({"neighbours": 6, "threshold": 3}, "threshold"),
        ({"neighbours": 7, "threshold": 3}, "threshold"),
        ({"neighbours": 10, "clients": tuple(range(20)), "threshold": 6}, "threshold"),
    ],
    ids=range(20),
)  # fmt: skip
def test_terms_beyond_their_limits_are_refused(change, wanted):
    with pytest.raises((ValueError, TypeError), match=wanted):
        Terms(**{**FACTS, **change})

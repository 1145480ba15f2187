"""Graphs that survive: probabilities by enumeration."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_rounds import terms_of

from randquant.secure_sums import Losses, ProtocolError, SumServer, terms
from randquant.secure_sums.secagg.client import STEPS


@pytest.mark.parametrize(("count", "threshold"), [(1, 1), (6, 4), (9, 0), (12, 12)])
@pytest.mark.parametrize("kept", [Fraction(1), Fraction(3, 4), Fraction(5, 2**30)])
def test_the_tail_of_those_who_stay_is_exact(count, threshold, kept):
    wanted = sum(
        math.comb(count, n) * kept**n * (1 - kept) ** (count - n) for n in range(threshold)
    )
    assert terms._fewer(threshold, count, kept) == wanted


@pytest.mark.parametrize(("loss", "steps"), [(0.0, 5), (0.05, 5), (1e-12, 3), (0.999, 5)])
def test_who_stays_is_rounded_down(loss, steps):
    exact, found = (1 - Fraction(loss)) ** steps, terms._staying(loss, steps)
    assert exact - Fraction(1, 2**30) < found <= exact


@pytest.mark.parametrize(("others", "colluders", "neighbours"), [(7, 3, 4), (8, 8, 6), (6, 0, 4)])
def test_the_tail_of_colluding_neighbours_is_that_of_all_sets(others, colluders, neighbours):
    for threshold in range(1, neighbours + 1):
        sets = list(itertools.combinations(range(others), neighbours))
        caught = sum(sum(n < colluders for n in each) >= threshold for each in sets)
        found = terms._caught(others, colluders, neighbours, threshold)
        assert found == Fraction(caught, len(sets))


def falls_apart(count, neighbours, there):
    """Whether clients at these positions of a ring are in two components or more."""
    left, reach = set(there), neighbours // 2
    if not left:
        return False
    todo = [left.pop()]
    while todo:
        at = todo.pop()
        near = {(at + step) % count for step in range(-reach, reach + 1)} & left
        left -= near
        todo += near
    return bool(left)


@pytest.mark.parametrize(
    ("count", "neighbours", "colluders"), [(7, 2, 1), (9, 4, 2), (9, 2, 0), (8, 4, 4)]
)
def test_rings_fall_apart_no_more_often_than_stated(count, neighbours, colluders):
    """By all sets of colluders and of clients that are lost."""
    lost, total = Fraction(1, 4), Fraction(0)
    everyone = frozenset(range(count))
    friends = list(itertools.combinations(range(count), colluders))
    for each in friends:
        honest = everyone.difference(each)
        for size in range(len(honest) + 1):
            for there in itertools.combinations(honest, size):
                if falls_apart(count, neighbours, there):
                    total += lost ** (len(honest) - size) * (1 - lost) ** size / len(friends)
    bound = terms._split(count, colluders, neighbours, lost)
    assert 0 < total <= bound
    assert terms._split(count, colluders, count - 1, lost) == 0


@pytest.mark.parametrize(("clients", "neighbours", "colluders"), [(16, 4, 3), (14, 6, 4)])
def test_some_client_is_exposed_no_more_often_than_stated(clients, neighbours, colluders):
    """By all sets of colluders: any client of the ring, and not one that was named before."""
    graph = Losses(step=0.0, colluders=colluders)._graph(clients, neighbours)
    reach = neighbours // 2
    near = [[(at + step) % clients for step in range(-reach, reach + 1) if step]
            for at in range(clients)]  # fmt: skip
    sets = list(itertools.combinations(range(clients), colluders))
    exposed = sum(
        any(len(friends.intersection(near[at])) >= graph.threshold
            for at in range(clients) if at not in friends)
        for friends in map(set, sets)
    )  # fmt: skip
    assert 0 < Fraction(exposed, len(sets)) <= graph.exposure < 1


def test_the_steps_in_which_clients_are_lost_are_those_of_a_client():
    assert STEPS[terms.UPLOAD_STEPS - 1] == "mask"
    assert STEPS[terms.ALL_STEPS] == "done"


@pytest.mark.parametrize(
    ("clients", "neighbours"), [(2, 1), (3, 2), (4, 3), (7, 6), (10, 9), (9, 4), (11, 6)]
)
def test_failures_are_as_rare_as_stated_and_not_much_rarer(clients, neighbours):
    """By all sets of clients that stay in five steps; exact where all are neighbours."""
    graph, kept = Losses(step=1 / 64)._graph(clients, neighbours), Fraction(63, 64) ** 5
    near = [
        [n for n in range(clients)
         if 0 < min((n - at) % clients, (at - n) % clients) <= -(-neighbours // 2)]
        for at in range(clients)
    ]  # fmt: skip
    failed = Fraction(0)
    for there in itertools.product((0, 1), repeat=clients):
        if min(sum(there[n] for n in each) for each in near) < graph.threshold:
            failed += kept ** sum(there) * (1 - kept) ** (clients - sum(there))
    union = 1 if neighbours == clients - 1 else clients
    assert failed <= graph.failure <= min(failed * union * (1 + 1e-15), 1)


@pytest.mark.parametrize("clients", [2, 7, 20, 100, 1000])
@pytest.mark.parametrize("step", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("part", [0, 0.1])
def test_a_graph_keeps_what_it_states_and_fewer_would_not(clients, step, part):
    losses = Losses(step, int(part * clients), failure=1e-3)
    if not losses._holds(losses._graph(clients, clients - 1)):
        with pytest.raises(ValueError, match=f"Expected losses that {clients} clients withstand"):
            losses.graph(clients)
        return
    graph = losses.graph(clients)
    assert graph.failure <= losses.failure
    assert graph.exposure <= losses.exposure
    terms = terms_of(clients, neighbours=graph.neighbours)
    assert (terms.neighbours, terms.threshold) == (graph.neighbours, graph.threshold)
    fewer = (graph.neighbours - 1) // 6 * 6
    assert not fewer or not losses._holds(losses._graph(clients, fewer))
    assert f"{graph.neighbours} of {clients - 1} others" in graph.reason


@pytest.mark.parametrize(
    "wrong",
    [{"step": 1.0}, {"step": -0.1}, {"colluders": -1}, {"failure": 0.0}, {"exposure": 2.0}],
)
def test_losses_are_checked(wrong):
    with pytest.raises(ValueError, match="Expected"):
        Losses(**{"step": 0.01, **wrong})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whoever_has_enough_neighbours_that_stay_to_the_end_is_never_left_out(data):
    """Proposition 3: then all have, and the server excludes nobody."""
    count = data.draw(st.integers(5, 24))
    terms = terms_of(count, neighbours=data.draw(st.sampled_from([4, 6, 8, count - 1])))
    server = SumServer(terms)
    end = data.draw(st.sets(st.sampled_from(terms.clients)))
    present = end | data.draw(st.sets(st.sampled_from(terms.clients)))
    stay = all(
        len(end.intersection(terms.client_neighbours(c))) >= terms.threshold for c in present
    )
    try:
        left = server._connected(present)
    except ProtocolError:
        left = frozenset()
    if stay and len(present) >= terms.least:
        assert left == present
    else:
        assert left <= present
    near = {c: len(left.intersection(terms.client_neighbours(c))) for c in left}
    assert all(count >= terms.threshold for count in near.values())

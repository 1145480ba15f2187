"""Records and thresholds at their limits; what a server asks no client for."""

from __future__ import annotations

import contextlib
import itertools
import math

import pytest
from flower_rounds import exact, one_round
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from randquant.integrations import QuantizeMod, payload_record, read_payload
from randquant.integrations.flower import messages
from randquant.integrations.flower.messages import PAYLOAD
from randquant.rounds import Offer, RoundsFailed
from randquant.secure_sums import ProtocolError, Terms


def test_a_payload_is_one_array_of_our_type():
    good = RecordDict({PAYLOAD: payload_record(b"abc")})
    assert read_payload(good) == b"abc"
    numbers = ArrayRecord({"codes": Array("uint8", (3,), messages.NUMPY, b"abc")})
    two = ArrayRecord({**good[PAYLOAD], "more": good[PAYLOAD]["codes"]})
    other = ArrayRecord({"code": good[PAYLOAD]["codes"]})
    for record in (numbers, two, other, ConfigRecord({"codes": b"abc"})):
        with pytest.raises(ProtocolError, match=r"Expected one array of 'randquant\.payload\.v1'"):
            read_payload(RecordDict({PAYLOAD: record}))


def test_nobody_is_asked_to_confirm_a_sum_of_too_few():
    """Four of five must be in it: the server gives up before a client has to refuse."""

    asked = []

    def lose(step, node, reply):
        asked.append(step)
        return [] if step == "upload" and node in (1, 2) else [reply]

    with pytest.raises(RoundsFailed):
        one_round(exact(cohort=4), fault=lose, patience=1)
    assert asked.count("upload") == 5
    assert not {"confirm", "reveal"} & set(asked)


@pytest.mark.parametrize("neighbours", [4, 5, 6])
def test_a_threshold_is_refused_exactly_where_colluders_get_around_it(neighbours):
    """Two sets of answering neighbours must share an honest one: all pairs of sets are tried."""
    offer, clients = Offer(exact(), 5), tuple(range(neighbours + 1))
    for threshold in range(neighbours // 2 + 1, neighbours + 1):
        terms = Terms(b"s", clients, 5, offer.sum_bits(len(clients)), 5, neighbours, threshold)
        sets = [set(chosen) for chosen in itertools.combinations(range(neighbours), threshold)]
        overlap = min(len(one & other) for one in sets for other in sets)
        for colluders in range(4):
            limits = QuantizeMod(math.inf, colluders=colluders)
            refused = pytest.raises(ProtocolError, match=f"{colluders} colluders cannot get around")
            with contextlib.nullcontext() if overlap > colluders else refused:
                limits.check_offer(offer, terms, limits.empty_account())

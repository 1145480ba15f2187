"""Records, arrays and log lines at their limits; what a server asks no client for."""

from __future__ import annotations

import contextlib
import itertools
import math

import numpy as np
import pytest
from flower_rounds import exact, grid_of, model, noisy, one_round, refusals
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from randquant.integrations.flower import messages
from randquant.integrations.flower.messages import PAYLOAD, payload_record, read_payload
from randquant.integrations.flower.mod import QuantizeMod
from randquant.integrations.flower.strategy import RoundsFailed
from randquant.integrations.offer import Offer
from randquant.integrations.protocol import RoundMessage
from randquant.integrations.sums import Intake
from randquant.privacy.accounting.accountant import account
from randquant.secure_sums.secagg.terms import ProtocolError, Terms


def with_header_of(size):
    """Five floats in a file of numpy.save whose numbers begin at a byte."""
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }"
    header = (text.ljust(size - 11) + "\n").encode()
    data = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(20)
    return Array("float32", (5,), messages.NUMPY, data)


def test_no_header_is_longer_than_numpy_reads():
    longest = with_header_of(messages.LONGEST_HEADER)
    np.testing.assert_array_equal(messages.read_array(longest), longest.numpy())
    with pytest.raises(ValueError, match=r"as numpy\.save writes it"):
        messages.read_array(with_header_of(messages.LONGEST_HEADER + 1))
    with pytest.raises(ValueError, match="Header info length"):
        with_header_of(messages.LONGEST_HEADER + 11).numpy()


def test_a_payload_is_one_array_of_our_type():
    good = RecordDict({PAYLOAD: payload_record(b"abc")})
    assert read_payload(good) == b"abc"
    numbers = ArrayRecord({"codes": Array("uint8", (3,), messages.NUMPY, b"abc")})
    two = ArrayRecord({**good[PAYLOAD], "more": good[PAYLOAD]["codes"]})
    other = ArrayRecord({"code": good[PAYLOAD]["codes"]})
    for record in (numbers, two, other, ConfigRecord({"codes": b"abc"})):
        with pytest.raises(ProtocolError, match=r"Expected one array of 'randquant\.payload\.v1'"):
            read_payload(RecordDict({PAYLOAD: record}))


def test_a_node_with_a_smaller_delta_reaches_its_limit_alone():
    mechanism = noisy(cohort=4)
    limit = account([mechanism.release(650, 1)], 1e-5, quick=True).epsilon
    grid = grid_of(QuantizeMod(1.01 * limit))
    grid.contexts[3].node_config["randquant-delta"] = 1e-9
    one_round(mechanism, grid=grid, arrays=model(650))
    assert set(refusals(grid)) == {3}
    assert "at delta 1e-09" in refusals(grid)[3]


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


def test_a_reply_of_another_step_or_round_is_not_taken():
    taken, refused = [], {}
    heads = {1: ("upload", b"s"), 2: ("share", b"s"), 3: ("upload", b"t")}
    answers = [(node, RoundMessage(*head)) for node, head in heads.items()]
    asked = dict.fromkeys(heads, RoundMessage("upload", b"s"))
    intake = Intake(refused, lambda level, line: None)
    known = intake.take("upload", asked, answers, lambda client, _: taken.append(client))
    assert set(known) == {1}
    assert taken == [1]
    assert set(refused) == {2, 3}
    assert all("a reply of this step and round, got another's" in text for text in refused.values())


@pytest.mark.parametrize("neighbours", [4, 5, 6])
def test_a_threshold_is_refused_exactly_where_colluders_get_around_it(neighbours):
    """Two sets of answering neighbours must share an honest one: all pairs of sets are tried."""
    offer, clients = Offer(exact(), 5), tuple(range(neighbours + 1))
    for threshold in range(neighbours // 2 + 1, neighbours + 1):
        terms = Terms(b"s", clients, 5, offer.bits(len(clients)), 5, neighbours, threshold)
        sets = [set(chosen) for chosen in itertools.combinations(range(neighbours), threshold)]
        overlap = min(len(one & other) for one in sets for other in sets)
        for colluders in range(4):
            limits = QuantizeMod(math.inf, colluders=colluders)
            refused = pytest.raises(ProtocolError, match=f"{colluders} colluders cannot get around")
            with contextlib.nullcontext() if overlap > colluders else refused:
                limits.check_offer(offer, terms, limits.accountant())

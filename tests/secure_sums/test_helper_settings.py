"""Every limit of a helper: with one value it answers a request, with another it refuses."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
from helper_sums import helper_in, seeds_in

from randquant.secure_sums import (
    HelperLimits,
    HelperRequest,
    ProtocolError,
    verify_key_commitment,
    write_request,
)

CLIENTS, DIMENSION, COHORT, LEAST = (3, 5, 8, 9), 7, 11, 3
OFFER = "an offer"
DIGEST = hashlib.sha256(OFFER.encode()).digest()
TERMS = {"dimension": DIMENSION, "cohort": COHORT, "least": LEAST, "offer": DIGEST}
CASES = {  # limit: (a value with which it answers, one with which it refuses, the refusal)
    "least": (LEAST, LEAST + 1, f"of {LEAST + 1} clients or more"),
    "most_sums": (2, 1, "within the helper's limits"),
    "clients": (len(CLIENTS), len(CLIENTS) - 1, "Expected 3 clients at most"),
    "coordinates": (DIMENSION, DIMENSION - 1, "Expected 6 coordinates at most"),
    "masks": (len(CLIENTS) * DIMENSION, len(CLIENTS) * DIMENSION - 1, "of 27 at most"),
    "least_noise": (0.0, 1.0, "Expected noise of a variance of 1.0 or more"),
    "affords": (lambda *_: True, lambda *_: False, "within the helper's limits"),
}


def test_every_limit_is_here():
    assert {field.name for field in dataclasses.fields(HelperLimits)} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_helper_answers_with_one_value_of_a_limit_and_refuses_with_another(name, tmp_path):
    good, bad, refusal = CASES[name]
    for value in (good, bad):
        helper = helper_in(tmp_path / str(value is good), HelperLimits(**{name: value}))
        requests = [write_request(*seeds_in(helper, CLIENTS, **TERMS), OFFER) for _ in range(2)]
        if name == "most_sums":
            helper.answer(requests.pop())
        if value is good:
            helper.answer(requests[0])
        else:
            with pytest.raises(ProtocolError, match=refusal):
                helper.answer(requests[0])


@pytest.mark.parametrize("name", ["coordinates", "masks"])
def test_a_code_that_is_proven_counts_as_its_bits(name, tmp_path):
    """Codes up to 4: three bits each."""
    proven = {"largest": 4, "commitment": verify_key_commitment(bytes(32))}
    terms, seeds = seeds_in(helper_in(tmp_path), CLIENTS, **TERMS)
    request = HelperRequest(dataclasses.replace(terms, **proven), seeds, OFFER, bytes(32))
    most = 3 * DIMENSION * (len(CLIENTS) if name == "masks" else 1)
    HelperLimits(**{name: most}).check(request)
    with pytest.raises(ProtocolError, match=f"{most - 1}.* at most, this helper's limit"):
        HelperLimits(**{name: most - 1}).check(request)

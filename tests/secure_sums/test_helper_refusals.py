"""What strangers send to a helper, its clients and servers: each rule with a record against it."""

import json

import pytest
from helper_sums import helper_in, seeds_in, terms_of

from randquant.secure_sums import HelperKey, HelperTerms, ProtocolError, write_request


@pytest.fixture(scope="module")
def helper(tmp_path_factory):
    return helper_in(tmp_path_factory.mktemp("helper"))


def without(record, name):
    return {field: value for field, value in record.items() if field != name}


KEYS = {
    "a field more": lambda record: {**record, "more": ""},
    "no suite": lambda record: without(record, "suite"),
    "no signature": lambda record: without(record, "signature"),
    "an unknown suite": lambda record: {**record, "suite": "RSA"},
    "an unknown suite with a long key": lambda record: {
        **record,
        "suite": "RSA",
        "public": bytes(1184 + 32).hex(),
    },
    "a key one byte short": lambda record: {**record, "public": record["public"][2:]},
    "a signature one byte longer": lambda record: {
        **record,
        "signature": record["signature"] + "00",
    },
    "a key that is a number": lambda record: {**record, "public": 7},
    "a list": lambda record: [record],
}


@pytest.mark.parametrize("change", KEYS.values(), ids=KEYS)
def test_a_record_that_is_no_key_is_refused_as_a_strangers(change, helper):
    record = helper.key.to_record()
    assert HelperKey.from_record(record) == helper.key
    with pytest.raises(ProtocolError, match="Expected a helper's key"):
        HelperKey.from_record(change(record))


TERMS = {
    "of another format": lambda text: json.dumps({**json.loads(text), "format": "other"}),
    "without a format": lambda text: json.dumps(without(json.loads(text), "format")),
    "with a field more": lambda text: json.dumps({**json.loads(text), "more": 1}),
    "without a field": lambda text: json.dumps(without(json.loads(text), "bits")),
    "longer than any": lambda text: " " * 2**20 + text,
    "a list": lambda text: f"[{text}]",
    "no JSON": lambda text: text[:-1],
    "nested beyond any": lambda text: "[" * 2000,
}


@pytest.mark.parametrize("change", TERMS.values(), ids=TERMS)
def test_a_text_that_is_no_terms_is_refused_as_a_strangers(change, helper):
    text = terms_of(helper).to_text()
    assert HelperTerms.from_text(text).to_text() == text
    with pytest.raises(ProtocolError, match="Expected the terms of a sum with a helper"):
        HelperTerms.from_text(change(text))


REQUESTS = {
    "a text": (str, "a request in bytes"),
    "nothing": (lambda request: b"", "bytes or more, got 0"),
    "another magic": (lambda request: b"X" + request[1:], "which starts with"),
    "a byte less": (lambda request: request[:-1], "for 3 clients, got"),
    "a byte more": (lambda request: request + b"\0", "for 3 clients, got"),
}


@pytest.mark.parametrize("wrong", REQUESTS)
def test_bytes_that_are_no_request_are_refused_and_nothing_is_counted(wrong, tmp_path):
    change, said = REQUESTS[wrong]
    helper = helper_in(tmp_path, kept=True)
    request = write_request(*seeds_in(helper, range(3)))
    with pytest.raises(ProtocolError, match=said):
        helper.answer(change(request))
    assert helper.sums == {}
    helper.answer(request)
    assert helper.sums == dict.fromkeys(range(3), 1)

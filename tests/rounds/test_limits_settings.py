"""Every setting of a client: with one value it agrees to a request, with another it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from flower_rounds import EXACT, NOISY
from helper_sums import PINNED, helper_in, offered_terms

import randquant as rq
from randquant.aggregation import ChannelMechanism, VectorMechanism
from randquant.integrations import QuantizeMod
from randquant.privacy import account
from randquant.rounds import ClientLimits, Member, Offer, RoundMessage, protocol
from randquant.secure_sums import ProtocolError, Terms

MODEL = {"stem": np.zeros(3, np.float32), "head": np.zeros(2, np.float32)}
SESSION = bytes(16)
LOCAL = Offer(VectorMechanism(NOISY, 1.0), 5)
SUMMED = Offer(ChannelMechanism(EXACT, "aggregate", 2), 5)
MANY = Offer(VectorMechanism(rq.stochastic_rounding(0.25, 2, 0.5), 1.0, "aggregate", 20), 5)
NO_LIMIT = ClientLimits(math.inf)


def uploads(limits, offer=LOCAL, terms=""):
    """Whether a client of these limits agrees to answer an offer in one message, and counts it."""
    member = Member(1, limits, {}, {}, lambda level, line: None)
    request = RoundMessage(protocol.UPLOAD, SESSION, offer.to_text(), terms)
    agreed = member.agree(request, MODEL)
    member.charge(agreed.membership, protocol.UPLOAD)


def sums(limits, offer=SUMMED, clients=(1, 2, 3, 4, 5), **others):
    """Whether it agrees to a sum among clients."""
    terms = {"bits": offer.sum_bits(len(clients)), "least": 2, "neighbours": 4, **others}
    text = protocol.terms_text(Terms(SESSION, tuple(clients), offer.size, **terms))
    member = Member(1, limits, {}, {}, lambda level, line: None)
    member.answer(RoundMessage(protocol.ADVERTISE, SESSION, offer.to_text(), text))


def helped(limits, folder):
    """Whether it agrees to a sum with a helper."""
    _, terms = offered_terms(helper_in(folder).key, SUMMED, 5, 2, SESSION)
    uploads(limits, SUMMED, terms.to_text())


def epsilon_of(offer, delta=1e-5, neighboring="replace_one", trust="local"):
    return account([offer.release(1, neighboring, trust)], delta, quick=True).epsilon


@pytest.mark.parametrize("number", [4, 50])
def test_a_sum_of_gradients_is_divided_by_the_number_that_this_client_counts(number, monkeypatch):
    """Also where the server counts a smaller one: the larger moves the mean by less."""
    seen, encode = [], VectorMechanism.encode
    monkeypatch.setattr(
        VectorMechanism, "encode", lambda self, x, key: seen.append(x) or encode(self, x, key)
    )
    member = Member(1, ClientLimits(math.inf, examples=number, clip_norm=1.0), {}, {}, print)
    offer = replace(LOCAL, examples=4)
    agreed = member.agree(RoundMessage(protocol.UPLOAD, SESSION, offer.to_text()), MODEL)
    total = {"stem": np.float32([1, -2, 3]), "head": np.float32([0, 1e-3])}
    member.encode(agreed, MODEL, total, {}, whole=False)
    assert np.allclose(seen[0], np.float32([1, -2, 3, 0, 1e-3]) / number, rtol=2e-7, atol=0)


BETWEEN_DELTAS = (epsilon_of(LOCAL) + epsilon_of(LOCAL, 1e-9)) / 2
BETWEEN_RELATIONS = (epsilon_of(LOCAL) + epsilon_of(LOCAL, neighboring="zero_out")) / 2
BETWEEN_TRUSTS = (epsilon_of(MANY, trust="aggregate") + epsilon_of(MANY)) / 2
CASES = {  # setting: (what is asked, a value with which it agrees, one with which not, the refusal)
    "epsilon": (uploads, 99.0, 0.01, "within epsilon 0.01, this client's limit, got"),
    "delta": (uploads, 1e-5, 1e-9, "at delta 1e-09"),
    "neighboring": (uploads, "zero_out", "replace_one", "this client's limit"),
    "epsilon_alone": (
        lambda limits, _: sums(limits, MANY, range(20), least=20, neighbours=19),
        99.0, BETWEEN_TRUSTS,
        f"within epsilon {BETWEEN_TRUSTS}, this client's limit if all other clients are invented",
    ),
    "trust": (sums, "aggregate", "local", "an offer of local trust, as this client demands"),
    "all_neighbours": (
        lambda limits, _: sums(limits, neighbours=2), False, True, "all 4 others as neighbours"
    ),
    "colluders": (sums, 0, 1, "a cohort of at most 1, "),
    "threshold": (
        lambda limits, _: sums(limits, threshold=3), 0.75, 0.76, "Expected a threshold of 4 of 4"
    ),
    "parts": (uploads, ["stem", "head"], "head", "to train the 1 arrays"),
    "frozen": (uploads, [], "stem", "to train the 1 arrays"),
    "buffers": (uploads, "refuse", "server", "with buffers='server', as this client demands"),
    "helper": (helped, PINNED.hex(), "ab" * 32, "signed by the helper that this client"),
    "examples": (uploads, 20, 1, "within epsilon"),
    "clip_norm": (uploads, 1.0, 1.001, "got one that clips at 1.0 for a client at 1.001: set"),
}  # fmt: skip
BESIDE = {
    "delta": {"epsilon": BETWEEN_DELTAS}, "neighboring": {"epsilon": BETWEEN_RELATIONS},
    "examples": {"epsilon": 0.5, "clip_norm": 1.0}, "clip_norm": {"examples": 10},
}  # fmt: skip
"""What else is set: a limit of epsilon that lies between the two."""


def test_every_setting_is_here():
    assert CASES.keys() == {field.name for field in dataclasses.fields(ClientLimits)}


@pytest.mark.parametrize("name", CASES)
def test_a_client_agrees_with_one_value_of_a_setting_and_refuses_with_another(name, tmp_path):
    ask, good, bad, refusal = CASES[name]
    others = BESIDE.get(name, {})
    for value in (good, bad):
        limits = dataclasses.replace(NO_LIMIT, **{**others, name: value})
        asking = (limits, tmp_path) if ask not in (uploads, sums) else (limits,)
        if value is good:
            ask(*asking)
        else:
            with pytest.raises(ProtocolError, match=re.escape(refusal)):
                ask(*asking)


def test_colluders_count_in_a_sum_with_a_helper_too(tmp_path):
    for colluders in (0, 1):
        limits = ClientLimits(math.inf, helper=PINNED.hex(), colluders=colluders)
        if colluders:
            with pytest.raises(ProtocolError, match=re.escape("a cohort of at most 1, ")):
                helped(limits, tmp_path)
        else:
            helped(limits, tmp_path)


OF_NODES = {
    "randquant-epsilon": ("epsilon", "0.5", 0.5),
    "randquant-epsilon-alone": ("epsilon_alone", 3, 3.0),
    "randquant-delta": ("delta", "1e-9", 1e-9),
    "randquant-all-neighbours": ("all_neighbours", "false", False),
    "randquant-threshold": ("threshold", 0.8, 0.8),
    "randquant-helper": ("helper", PINNED.hex(), PINNED.hex()),
    "randquant-examples": ("examples", "120", 120),
    "randquant-clip-norm": ("clip_norm", 2, 2.0),
}
FILES = {"randquant-ledger", "randquant-identity", "randquant-directory"}


@pytest.mark.parametrize("name", OF_NODES)
def test_what_a_nodes_operator_sets_takes_the_place_of_that_setting_and_of_no_other(name):
    field, text, value = OF_NODES[name]
    found = NO_LIMIT.with_operator_settings({name: text, "partition-id": 3})
    assert found == dataclasses.replace(NO_LIMIT, **{field: value}) != NO_LIMIT


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [("examples", "1e3", "a whole number"), ("examples", 12.7, "a whole number"),
     ("examples", True, "a whole number"), ("epsilon", "", "a number")],
)  # fmt: skip
def test_what_an_operator_mistyped_is_refused_by_its_name(name, value, wanted):
    match = re.escape(f"Expected randquant-{name} to be {wanted}, got {value!r}.")
    with pytest.raises(ValueError, match=match):
        NO_LIMIT.with_operator_settings({f"randquant-{name}": value})


@pytest.mark.parametrize(
    "name", ["randquant-epsilom", "randquant_epsilon", "Randquant-Epsilon", "randquant-colluders"]
)
def test_a_limit_of_a_name_that_nothing_reads_is_refused(name):
    with pytest.raises(ValueError, match=f"Expected a setting of .*; got {name!r}"):
        NO_LIMIT.with_operator_settings({name: 1})


def test_an_account_is_in_one_place_wherever_its_client_is_started(tmp_path):
    NO_LIMIT.with_operator_settings({"randquant-ledger": str(tmp_path / "account")})
    for name in ("account", "./account", "../account", "~/account"):
        with pytest.raises(ValueError, match="randquant-ledger to be a whole path"):
            NO_LIMIT.with_operator_settings({"randquant-ledger": name})


def test_every_setting_of_a_node_is_here():
    NO_LIMIT.with_operator_settings(dict.fromkeys(FILES, "/var/lib/file"))
    assert set(re.findall("randquant-[a-z-]+", str(QuantizeMod.__doc__))) == OF_NODES.keys() | FILES


@pytest.mark.parametrize("has_file", [True, False])
def test_of_messages_at_once_a_file_counts_each_and_who_has_none_is_told(has_file, tmp_path):
    """Flower answers each in a process of its own, which begins with the same state."""
    files = {"randquant-ledger": str(tmp_path / "account")} if has_file else {}
    limits, lines, answered = ClientLimits(1.001 * epsilon_of(LOCAL)), [], 0
    for session in (bytes(16), bytes(15) + b"1", bytes(15) + b"2"):
        member = Member(1, limits, {}, files, lambda level, line: lines.append(line))
        request = RoundMessage(protocol.UPLOAD, session, LOCAL.to_text())
        with contextlib.suppress(ProtocolError):
            member.charge(member.agree(request, MODEL).membership, protocol.UPLOAD)
            answered += 1
    assert answered == (1 if has_file else 3)
    assert any("needs a file for its account" in line for line in lines) is not has_file


@pytest.mark.parametrize("identity", ["00" * 32, "01" + "00" * 31, "00" * 31 + "80"])
def test_a_client_trusts_no_helper_for_which_anybody_can_sign(identity):
    with pytest.raises(ValueError, match="for which anybody can sign"):
        ClientLimits(math.inf, helper=identity)
    with pytest.raises(ValueError, match="for which anybody can sign"):
        NO_LIMIT.with_operator_settings({"randquant-helper": identity})

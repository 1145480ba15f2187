"""Golden vectors: this code computes them, and so does a client written from their page."""

import hashlib
import json
import math
import struct

import numpy as np
import pytest
from Crypto.Hash import TurboSHAKE128
from golden_vectors import client, write
from golden_vectors.client import fold, words

VECTORS = {path.stem: json.loads(path.read_text()) for path in sorted(write.HERE.glob("*.json"))}
STEPS = {name: steps for name, (_, steps, _) in write.rounds().items()}
DITHER = 2**13
"""How far a dither threshold may be off, in 2**-32 of a cell, where processors round differently:
a millionth of a cell and a half. Twice that would still find each wrong formula."""


def near(one, other):
    """Equal, but for the last bits of floats, in which processors may differ."""
    if isinstance(one, dict):
        dithers = "dither thresholds"
        return one.keys() == other.keys() and all(
            np.allclose(one[name], other[name], rtol=0, atol=DITHER)
            if name == dithers
            else near(one[name], other[name])
            for name in one
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-7)
    return one == other


def of(name):
    return VECTORS[name]["inputs"], VECTORS[name]["steps"]


def hexed(numbers):
    return [f"{number:016x}" for number in numbers]


@pytest.mark.parametrize("name", STEPS)
def test_the_code_computes_every_step_from_the_inputs(name):
    inputs, steps = of(name)
    computed = json.loads(json.dumps(STEPS[name](inputs)))
    assert near(computed, steps)
    other = json.loads(json.dumps(inputs))
    if "key" in other:  # a comparison that cannot fail would show nothing
        other["key"] = "00" * 32
        assert not near(json.loads(json.dumps(STEPS[name](other))), steps)


def test_the_files_are_those_that_are_written_and_small():
    assert VECTORS.keys() == STEPS.keys()
    assert sum(path.stat().st_size for path in write.HERE.glob("*.json")) < 100_000
    assert {vector["format"] for vector in VECTORS.values()} == {write.FORMAT}


def check_encoding(inputs, steps, update=None):
    """One update through a channel; returns its payload."""
    mechanism, key = inputs["mechanism"], bytes.fromhex(inputs["key"])
    channel, levels = mechanism["channel"], len(mechanism["channel"]["values"])
    update = inputs["update"] if update is None else update
    coordinates, padding = update, 0
    name = client.channel_fingerprint(channel)
    assert name.hex() == steps["channel fingerprint"] == channel["fingerprint"]
    if mechanism["mechanism"] == "vector":
        norm, seed = mechanism["clip_norm"], mechanism["rotation_seed"]
        assert near(client.clip(update, norm), steps["clipped"])
        assert client.signs(seed, len(update))[: len(update)] == steps["signs"]
        assert near(client.rotate(steps["clipped"], seed), steps["rotated"])
        coordinates = steps["rotated"]
        padding = len(coordinates) - len(update)
        if "coordinates" in mechanism:
            count, drawn = mechanism["coordinates"], mechanism["subset_seed"]
            size = len(coordinates)
            assert client.subset(size, count, drawn) == steps["subset"]
            kept = [coordinates[k] for k in steps["subset"]]
            # A square root, correctly rounded: only the subset's share of the norm is sent.
            assert near(client.clip(kept, norm * math.sqrt(count / size)), steps["kept"])
            coordinates, padding = steps["kept"], count - len(update)
            name = client.fingerprint(levels, name.hex(), "subset", count, drawn)
    count = len(coordinates)
    assert hexed(words(fold(key, "draw"), count)) == steps["draw words"]
    drawn = client.draw(channel, coordinates, key)
    assert [each["steps"] for each in drawn] == steps["dither thresholds"]
    assert [each["vertex"] for each in drawn] == steps["vertices"]
    assert [each["code"] for each in drawn] == steps["codes"]
    payload = client.payload(steps["codes"], levels, name, padding)
    assert payload.hex() == steps["header"] + steps["body"]
    return payload


@pytest.mark.parametrize("name", ["one-bit-local", "five-levels", "subset", "tie"])
def test_a_second_client_encodes_the_same_payload(name):
    check_encoding(*of(name))


def test_a_tie_is_one():
    """The first 32 bits do not decide the code: with other low bits it is another."""
    inputs, steps = of("tie")
    first = int(steps["draw words"][0], 16) >> 32
    threshold = inputs["mechanism"]["channel"]["weights"][0][0]
    assert first << 30 < threshold < (first + 1) << 30
    low = int(steps["tie words"][0], 16) % 2**30
    assert steps["codes"] == [int(threshold <= (first << 30 | low))]


def test_a_second_client_addresses_the_same_payload():
    inputs, steps = of("one-bit-local")
    facts = ("upload", steps["payload fingerprint"], inputs["session"], str(inputs["client"]))
    sent = client.payload(steps["codes"], 2, client.fingerprint(2, *facts))
    assert sent.hex() == steps["addressed"]


def test_a_second_client_sends_the_same_messages_in_a_sum_among_clients():
    inputs, steps = of("one-bit-among-clients")
    terms, survivors = inputs["terms"], inputs["survivors"]
    clients = {
        int(n): client.SumClient(terms, int(n), inputs["clients"][n]) for n in steps["clients"]
    }
    adverts = {n: each.advert() for n, each in clients.items()}
    for n, each in clients.items():
        own, mine = inputs["clients"][str(n)], steps["clients"][str(n)]
        check_encoding({**inputs, **own}, mine["encoding"])
        assert each.digest.hex() == steps["terms digest"]
        assert each.holders == steps["holders"]
        assert adverts[n].hex() == mine["advert"]
        others = {m: advert for m, advert in adverts.items() if m != n}
        sent = each.share(others, [bytes.fromhex(drawn) for drawn in own["random"]])
        assert write.hexed(sent) == mine["sent to share"]
        assert write.hexed(each.keys) == mine["pair keys"]
        assert write.hexed(each.masks) == mine["pair mask secrets"]
        received = {int(m): bytes.fromhex(got) for m, got in mine["received to mask"].items()}
        masked = each.mask(mine["encoding"]["codes"], received)
        if n not in survivors:
            continue
        assert masked.hex() == mine["masked"]
        confirmed = each.confirm(survivors)
        assert write.hexed(confirmed) == mine["sent to confirm"]
        assert write.hexed(each.reveal()) == mine["revealed"]
    codes = [steps["clients"][str(n)]["encoding"]["codes"] for n in survivors]
    assert [sum(each) for each in zip(*codes, strict=True)] == steps["sum"]


def check_helper(inputs, steps, codes):
    terms, seed = json.loads(steps["terms text"]), bytes.fromhex(inputs["random"][0])
    assert client.helper_digest(steps["terms text"]).hex() == steps["terms digest"]
    ephemeral = bytes.fromhex(inputs["ephemeral"])
    sent = client.helper_message(
        steps["terms text"], terms, inputs["client"], codes, seed, ephemeral
    )
    assert sent.hex() == steps["message"]


def test_a_second_client_sends_the_same_message_in_a_sum_with_a_helper():
    inputs, steps = of("one-bit-helper")
    check_encoding(inputs, steps["encoding"])
    check_helper(inputs, steps, steps["encoding"]["codes"])


def test_a_second_helper_opens_the_hybrid_seal():
    inputs, steps = of("hybrid-seal")
    sealed, secret, info = (
        bytes.fromhex(inputs[name]) for name in ("sealed seed", "helper secret", "seal info")
    )
    assert client.hybrid_open(sealed, secret, info).hex() == steps["seed"]


def check_noise(steps, count, key):
    law = dict(steps["law"])
    first, listed = client.TABLES[law.pop("law")](**law)
    table = b"".join(each.to_bytes(24, "big") for each in listed)
    assert (first, len(listed)) == (steps["table"]["first"], steps["table"]["thresholds"])
    assert hashlib.sha256(table).hexdigest() == steps["table"]["sha256"]
    assert client.drawn_noise(steps["law"], count, fold(key, "noise")) == steps["noise"]


@pytest.mark.parametrize("name", ["skellam-helper", "discrete-gaussian-helper"])
def test_a_second_client_draws_the_same_integer_noise(name):
    inputs, steps = of(name)
    mechanism, key = dict(inputs["mechanism"]), bytes.fromhex(inputs["key"])
    rounded = client.rounded(steps["steps"], steps["bound"], fold(key, "round"))
    assert rounded == steps["rounded"]
    check_noise(steps, len(rounded), key)
    levels = 2 ** mechanism["bits"]
    codes = [(r + n) % levels for r, n in zip(rounded, steps["noise"], strict=True)]
    mechanism["half the noise"] = mechanism["noise_in_clip_norms"] / 2
    facts = ("mechanism", "clip_norm", "half the noise", "cohort", "deviations", "rotation_seed")
    named = client.fingerprint(levels, *(mechanism[fact] for fact in facts))
    padding = len(codes) - len(inputs["update"])
    payload = client.payload(codes, levels, named, padding)
    assert payload.hex() == steps["header"] + steps["body"]
    check_helper(inputs, steps, codes)


def test_a_second_client_adds_the_numbers_beside_an_update():
    inputs, steps = of("auxiliary-numbers")
    clipped, values = client.clip(inputs["update"], 1.0), inputs["values"]
    (accuracy, examples) = (values[name] for name in ("accuracy", "num-examples"))
    left = math.sqrt(1 - 2 * 0.2**2) * examples / 200
    joined = [x * left for x in clipped] + [0.2 * (2 * accuracy - 1), 0.2 * (examples / 100 - 1)]
    assert near(joined, steps["joined"])
    check_encoding(inputs, steps, steps["joined"])


def test_a_second_client_seals_the_same_seed_of_a_proven_message():
    inputs, steps = of("proven-sum")
    check_encoding(inputs, steps["encoding"])
    seed, nonce = (bytes.fromhex(each) for each in inputs["random"][:2])
    public, leader = (bytes.fromhex(steps[name]) for name in ("public share", "leader share"))
    assert nonce.hex() == steps["nonce"]
    info = b"randquant helper seed\0" + bytes.fromhex(steps["terms digest"])
    info += client.number(inputs["client"]) + nonce + public
    terms = json.loads(steps["terms text"])
    key, ephemeral = bytes.fromhex(terms["key"]["public"]), bytes.fromhex(inputs["ephemeral"])
    sealed = client.hpke_seal(seed, key, info, ephemeral)
    assert (b"RQH2" + nonce + public + sealed + leader).hex() == steps["message"]
    tag = b"randquant helper share"
    head = struct.pack("<H", len(tag)) + tag + b"\x20" + seed
    assert TurboSHAKE128.new(data=head, domain=1).read(64).hex() == steps["helper share"]
    committed = client.sha256(b"randquant verification key\0", bytes.fromhex(inputs["verify key"]))
    assert committed.hex() == terms["commitment"]


def test_a_second_client_answers_the_survey():
    inputs, steps = of("survey")
    text, key = inputs["mechanism"]["survey"], bytes.fromhex(inputs["key"])
    survey, count = json.loads(text), len(steps["vector"])
    digest = struct.unpack("<16H", hashlib.sha256(text.encode()).digest())
    assert list(digest) == steps["digest numbers"]
    # The mean: x, then x^2 - 1/2 in halves, rounded by the words; then a place for missing values.
    amplitude, x = survey["amplitudes"]["age"], inputs["record"]["age"] / 50 - 1
    drawn = words(fold(fold(key, "rounding", "age"), 0), 2)
    exact = [amplitude * x, amplitude / 2 * (x * x - 0.5)]
    age = [
        math.floor(e) + (w < int((e - math.floor(e)) * 2**64))
        for e, w in zip(exact, drawn, strict=True)
    ]
    assert [*age, 0, 0, survey["amplitudes"]["sex"], 0] == steps["vector"]
    check_noise(steps, count, key)
    levels = 2 ** survey["bits"]
    codes = [(v + n) % levels for v, n in zip(steps["vector"], steps["noise"], strict=True)]
    payload = client.payload(codes, levels, client.fingerprint(levels, "survey", text), -16)
    assert payload.hex() == steps["header"] + steps["body"]


def test_a_second_client_reads_the_floats_of_gaussian_noise():
    inputs, steps = of("gaussian")
    clipped = client.clip(inputs["update"], 1.0)
    assert near(clipped, steps["clipped"])
    key = words(fold(bytes.fromhex(inputs["key"]), "noise"), 2)
    assert hexed(key) == steps["philox key"]
    normal = np.random.Generator(np.random.Philox(key=key)).standard_normal(len(clipped))
    assert np.allclose(clipped + steps["deviation"] * normal, steps["sent"], rtol=1e-6, atol=1e-6)
    assert struct.pack(f"<{len(clipped)}f", *steps["sent"]).hex() == steps["payload"]

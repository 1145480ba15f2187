"""What every mechanism for whole updates answers, and every release that it is accounted by."""

import dataclasses
import json
import math

import numpy as np
import pytest
from mechanisms_built import CHANNELS, CLIENTS, EXAMPLES, SOME, WHOLE, built, parties_noise

import randquant as rq
from randquant._internal import to_json
from randquant.aggregation import (
    AdditiveMechanism,
    ChannelMechanism,
    HelperNoise,
    MechanismDefaults,
    VectorMechanism,
    all_mechanisms,
    from_record,
    load,
    save,
)
from randquant.audit import worst_inputs
from randquant.channels import Key, wire
from randquant.privacy import Sampled, run_release

DIMENSION = 5
GRIDS = AdditiveMechanism, HelperNoise
BUILT = built(CLIENTS)
UPDATES = np.random.default_rng(0).normal(0, 0.5, (CLIENTS, DIMENSION)).astype(np.float32)


def keys():
    return [Key.from_seed(client) for client in range(CLIENTS)]


@pytest.fixture(params=BUILT.values(), ids=BUILT)
def mechanism(request):
    return request.param


RELEASING = {name: each for name, each in BUILT.items() if each.trust is not None}
of_releases = pytest.mark.parametrize("mechanism", RELEASING.values(), ids=RELEASING)


def test_every_registered_mechanism_is_here():
    """But a channel that is given as a file."""
    assert {*CHANNELS, *WHOLE} == all_mechanisms().keys() - {"channel-file"}
    assert all(each.example for each in EXAMPLES.values())


def test_facts(mechanism):
    assert mechanism.trust in ("local", "aggregate", "central", None)
    shared = mechanism.trust == "aggregate" and not mechanism.helper_noise
    assert mechanism.cohort == (CLIENTS if shared else 1)
    assert mechanism.clip_norm in (None, 1.0)
    assert mechanism.size(DIMENSION) in (SOME, 5, 8)


ROTATING = [name for name, each in BUILT.items() if hasattr(each, "rotation_seed")]


@pytest.mark.parametrize("name", ROTATING)
def test_the_seed_of_a_rotation_decides_what_is_sent_and_is_undone(name):
    mechanism, update = BUILT[name], np.linspace(-0.1, 0.1, 64, dtype=np.float32)
    sent = []
    for seed in (0, 1):
        turned = dataclasses.replace(mechanism, rotation_seed=seed).projection(64)
        sent.append(turned.forward(update))
        if mechanism.coordinates is None:
            assert np.allclose(turned.inverse(sent[-1]), update, atol=1e-5)
    assert not np.allclose(*sent, atol=1e-3)


@pytest.mark.slow(after=1)
def test_many_payloads_are_those_of_each(mechanism):
    expected = [mechanism.encode(*each) for each in zip(UPDATES, keys(), strict=True)]
    assert mechanism.encode_many(UPDATES, keys()) == expected
    with pytest.raises(ValueError, match=r"Expected a (key|row) for each"):
        mechanism.encode_many(UPDATES, keys()[1:])


def test_a_damaged_payload_is_refused_by_its_index(mechanism):
    payloads = mechanism.encode_many(UPDATES, keys())
    other = mechanism.encode(np.zeros(DIMENSION + 1, np.float32), Key.from_seed(7))  # as long
    for bad in (b"", payloads[1][1:], payloads[1][:-1], payloads[1] + b"\0", other):
        for dimension in (None, DIMENSION):
            with pytest.raises(ValueError, match=r"^payload 1: Expected"):
                mechanism.mean([payloads[0], bad, *payloads[2:]], dimension, Key.from_seed(9))


def test_sums_of_codes_decode_to_the_mean_or_are_refused(mechanism):
    size, coding = mechanism.size(DIMENSION), mechanism.channel
    if coding is not None or isinstance(mechanism, GRIDS):
        coding = mechanism.coding
    if coding is None or (mechanism.channel is not None and mechanism.channel.lattice is None):
        with pytest.raises(ValueError, match=r"decodes sums of codes|evenly spaced"):
            mechanism.decode(np.zeros(size, dtype=np.int64), CLIENTS, DIMENSION)
        return
    payloads = mechanism.encode_many(UPDATES, keys())
    totals = sum(wire.unpack(coding, payload, size).astype(np.int64) for payload in payloads)
    mean = mechanism.mean(payloads, DIMENSION, Key.from_seed(9))
    totals += parties_noise(mechanism, DIMENSION, Key.from_seed(9))
    if mechanism.channel is None:  # its codes are remainders, and so is what is decoded
        totals %= 2 ** mechanism.sum_bits(DIMENSION, CLIENTS)
    assert np.array_equal(mechanism.decode(totals, CLIENTS, DIMENSION), mean)


def test_without_noise_there_is_no_release():
    assert all(
        (each.release(DIMENSION, 1) is None) == (each.trust is None) for each in BUILT.values()
    )


@of_releases
@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_a_release_is_under_the_mechanisms_trust(mechanism, neighboring):
    release = mechanism.release(DIMENSION, 4, neighboring)
    assert (release.trust, release.neighboring, release.rounds) == (
        mechanism.trust, neighboring, 4,
    )  # fmt: skip
    assert release.releases == 4 * mechanism.size(DIMENSION)
    assert release.renyi(2.0) > 0
    assert 0 <= release.distance < 1e-9


@of_releases
def test_what_else_a_release_answers(mechanism):
    release = mechanism.release(DIMENSION, 1)
    assert not release.sampled
    assert release.coordinate_channel in (None, mechanism.channel)
    # Two updates are two clip norms apart.
    relative = mechanism.record().get("noise_in_clip_norms", 0) / 2
    assert release.gaussian_multiplier in (None, relative)
    assert release.zeroed() in (None, mechanism.release(DIMENSION, 1, "zero_out"))
    if mechanism.channel is None and not isinstance(mechanism, GRIDS):
        with pytest.raises(ValueError, match="release of codes"):
            release.under("local")
    else:
        assert release.under("aggregate").trust == "aggregate"
        assert release.under("aggregate").renyi(2.0) == release.renyi(2.0)
        alone = release.under("local")
        assert alone.trust == "local"
        assert alone.under("aggregate").renyi(2.0) == alone.renyi(2.0) >= release.renyi(2.0)


@of_releases
def test_one_example_changes_less_or_nothing_is_known(mechanism):
    release = mechanism.release(DIMENSION, 1)
    kind = mechanism.record()["mechanism"]
    vector = kind == "vector"
    grid = isinstance(mechanism, GRIDS)  # whose steps rounding adds to the distance
    if not (vector or grid or (release.gaussian_multiplier and mechanism.clip_norm)):
        with pytest.raises(ValueError, match="in L2"):
            run_release(mechanism, DIMENSION, 1, examples=100)
        return
    one = run_release(mechanism, DIMENSION, 1, examples=100).renyi(2.0)
    if vector or grid:  # where a channel jumps, being close is of no use
        assert one <= release.renyi(2.0)
    else:
        assert one < release.renyi(2.0) / 1000


def test_a_sampled_release_says_so():
    release = Sampled(rq.GaussianRelease(2.0, 5, 1), 0.1, rounds=3)
    assert release.sampled
    with pytest.raises(ValueError, match="not sampled yet"):
        Sampled(release, 0.1, rounds=3)


def test_the_error_of_a_mean_is_known_where_updates_are_clipped_in_l2(mechanism):
    if mechanism.clip_norm is None:
        with pytest.raises(TypeError, match="clipped in l2"):
            mechanism.expected_error(DIMENSION)
        return
    error = mechanism.expected_error(DIMENSION)
    if mechanism.trust is None:
        assert error.deviation(1) == 0
        return
    assert 0 < error.deviation(100) < error.deviation(1) < math.inf


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_inputs_of_an_audit_are_neighbours_at_the_threshold_or_beyond(mechanism, neighboring):
    x, other = mechanism.audit_inputs(neighboring)
    alone = mechanism.channel is not None and mechanism.clip_norm is None
    assert x != other
    assert abs(x) > 0 if alone else abs(x) >= 512
    assert neighboring == "replace_one" or other == 0
    update, replaced = worst_inputs(mechanism, 2, neighboring)
    assert update.tolist() == [np.float32(x)] * 2
    assert replaced.tolist() == [np.float32(other)] * 2


def test_a_record_makes_the_same_mechanism(mechanism, tmp_path):
    record = json.loads(json.dumps(to_json(mechanism.record())))
    assert from_record(record) == mechanism
    save(mechanism, tmp_path / "mechanism.json")
    assert load(tmp_path / "mechanism.json") == mechanism


def test_a_channel_is_certified_again_when_a_record_is_read(mechanism):
    if mechanism.channel is None:
        return
    record = json.loads(json.dumps(to_json(mechanism.record())))
    record["channel"]["certificate"]["epsilon"] = {"lower": 0.0, "upper": 1e-9}
    with pytest.raises(ValueError, match="to be certified at epsilon"):
        from_record(record)


def test_a_file_that_was_changed_or_has_no_checksum_is_refused(mechanism, tmp_path):
    path = tmp_path / "mechanism.json"
    save(mechanism, path)
    record = json.loads(path.read_text())
    for name, value in record.items():
        if type(value) in (int, float):
            path.write_text(json.dumps({**record, name: value + 1}))
            with pytest.raises(ValueError, match="its checksum does not match its content"):
                load(path)
    del record["checksum"]
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="not a JSON object with a checksum"):
        load(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"more": 1}, "Expected fields clip_norm, noise_in_clip_norms, got more too"),
        (
            {"noise_in_clip_norms": ...},
            "Expected fields clip_norm, noise_in_clip_norms, got no noise",
        ),
    ],
)
def test_a_record_with_other_fields_is_refused_by_their_names(change, sentence):
    record = {"mechanism": "sign-sgd", "clip_norm": 1.0, "noise_in_clip_norms": 4.0, **change}
    record = {name: value for name, value in record.items() if value is not ...}
    with pytest.raises((TypeError, ValueError), match=f"^{sentence}"):
        from_record(record)


@pytest.mark.parametrize("parent", [ChannelMechanism, VectorMechanism, AdditiveMechanism])
def test_no_mechanism_is_derived_from_another(parent):
    """What it states, and how it encodes many, would be its parent's."""
    with pytest.raises(TypeError, match="hold one and call it"):
        type("Derived", (parent,), {"encode": lambda self, update, key: b""})


class Coin(MechanismDefaults):
    """The fewest lines that a mechanism of one's own takes."""

    trust, cohort, clip_norm, channel = "local", 1, None, None

    def encode_vector(self, vector, key):
        return bytes([int(vector[0] > 0) ^ int(key.words(1)[0] >> np.uint64(63))])

    def mean_vector(self, payloads, dimension, key):
        return np.full(dimension, np.mean([payload[0] for payload in payloads]), dtype=np.float32)

    def upload_bytes(self, dimension, clients=None):
        return 1

    def release(self, dimension, rounds, neighboring="replace_one"):
        return rq.GaussianRelease(1e-3, dimension, rounds, "local", neighboring)


def test_a_mechanism_of_ones_own_says_what_it_does_not_know():
    coin = Coin()
    expected = [coin.encode(*each) for each in zip(UPDATES, keys(), strict=True)]
    assert coin.encode_many(UPDATES, keys()) == expected
    assert coin.size(7) == 7
    assert coin.payload_bytes(7) == 1
    tensors = {"a": UPDATES[0, :2], "steps": np.array(3), "b": UPDATES[0, 2:]}
    assert coin.encode(tensors, keys()[0]) == expected[0]
    with pytest.raises(TypeError, match="payloads of a Coin do not state: give it as"):
        coin.mean(expected)
    assert coin.mean(expected, 5).shape == (5,)
    for error, ask, word in (
        (TypeError, lambda: coin.expected_error(5), "clipped in l2"),
        (TypeError, lambda: coin.decoded(UPDATES[0], 5), "clipped in l2"),
        (ValueError, coin.audit_inputs, "clip_norm, clip or channel"),
        (ValueError, lambda: coin.decode(np.zeros(5), 1, 5), "decodes sums of codes"),
        (TypeError, coin.record, "cannot be saved"),
    ):
        with pytest.raises(error, match=word):
            ask()

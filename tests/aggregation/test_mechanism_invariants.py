"""What holds for the draws, the sums and the means of every mechanism, at any size."""

import itertools

import numpy as np
import pytest
from mechanisms_built import built, parties_noise
from scipy import stats
from slow import slow
from streams import recorded, windows_again
from sum_rounds import Round, terms_of

from randquant.aggregation import from_record
from randquant.channels import CHUNK_SIZE, Key, wire

DIMENSION, CLIENTS = 5, 3
BUILT = built(CLIENTS)
RANDOM = {name: each for name, each in BUILT.items() if each.trust not in (None, "central")}
SUMMED = {name: each for name, each in BUILT.items() if each.trust == "aggregate"}
UPDATES = np.random.default_rng(1).normal(0, 0.3, (2 * CLIENTS, DIMENSION)).astype(np.float32)
KEYS = [Key(bytes([client] * 32)) for client in range(2 * CLIENTS)]
SERVER = Key.from_seed(9)


def of(mechanisms):
    return pytest.mark.parametrize("mechanism", mechanisms.values(), ids=mechanisms)


@of(BUILT)
@pytest.mark.parametrize("dimension", [DIMENSION, *slow(1, 65)])
def test_bytes_are_as_stated_in_any_dimension(mechanism, dimension):
    if mechanism.size(64) < 64 and dimension < mechanism.size(64):
        return  # it sends as many coordinates as there are not
    update = np.full(dimension, 0.01, np.float32)
    payloads = [mechanism.encode(update, key) for key in KEYS[:CLIENTS]]
    assert {len(payload) for payload in payloads} == {mechanism.payload_bytes(dimension)}
    if mechanism.trust != "aggregate":  # whoever else takes part
        assert mechanism.upload_bytes(dimension, 40) == mechanism.payload_bytes(dimension)
    assert mechanism.upload_bytes(dimension, CLIENTS) > 0
    mean = mechanism.mean(payloads, dimension, SERVER)
    assert (mean.shape, mean.dtype) == ((dimension,), np.float32)
    assert np.isfinite(mean).all()


@of(BUILT)
def test_a_mean_does_not_depend_on_the_order_and_weighs_all_alike(mechanism):
    payloads = mechanism.encode_many(UPDATES, KEYS)
    mean = mechanism.mean(payloads, DIMENSION, SERVER)
    for order in itertools.islice(itertools.permutations(range(2 * CLIENTS)), 1, 720, 97):
        again = mechanism.mean([payloads[place] for place in order], DIMENSION, SERVER)
        assert np.allclose(again, mean, rtol=1e-5, atol=1e-6 * np.abs(mean).max())
    if mechanism.trust == "central" or mechanism.helper_noise:
        return  # each mean has noise of its own
    halves = [mechanism.mean(part, DIMENSION) for part in (payloads[:CLIENTS], payloads[CLIENTS:])]
    assert np.allclose(np.mean(halves, axis=0), mean, rtol=1e-5, atol=1e-5 * np.abs(halves).max())


@of(RANDOM)
def test_a_payload_is_of_its_own_key_and_what_was_saved_draws_the_same(mechanism):
    again = from_record(mechanism.record())
    payloads = [mechanism.encode(UPDATES[0], Key.from_seed(seed)) for seed in range(60)]
    assert [again.encode(UPDATES[0], Key.from_seed(seed)) for seed in range(60)] == payloads
    assert len(set(payloads)) > 1
    now, later = mechanism.in_round(7), mechanism.in_round(8)
    if now.encode(UPDATES[0], KEYS[0]) != later.encode(UPDATES[0], KEYS[0]):
        with pytest.raises(ValueError, match="payload 0: Expected"):
            now.mean([later.encode(UPDATES[0], key) for key in KEYS[:CLIENTS]], DIMENSION, SERVER)


LONG = 2 * CHUNK_SIZE + 3
"""More than two parts of every loop over the coordinates of one update."""


@of(RANDOM)
def test_no_part_of_a_long_update_has_the_draws_of_another(mechanism):
    """Of zeros: whatever is sent then is drawn. Each byte has 1/2 bit of min-entropy and more."""
    with recorded(public=True) as reads:  # nor has a pass of a public rotation those of another
        payload = mechanism.encode(np.zeros(LONG, np.float32), KEYS[0])
        mechanism.encode(np.ones(LONG, np.float32), KEYS[1])
    assert reads
    assert not reads.again
    # Else it is one index, or zeros, to which the helper of a sum adds the noise.
    if len(payload) > 100 and not mechanism.helper_noise:
        assert not windows_again(payload[wire.HEADER_BYTES :], 128)


@of(SUMMED)
def test_a_secure_sum_is_the_mean_of_its_payloads_at_the_bytes_stated(mechanism):
    """From what a client encodes to what the server decodes, masks in between."""
    size, bits = mechanism.size(DIMENSION), mechanism.sum_bits(DIMENSION, CLIENTS)
    payloads = mechanism.encode_many(UPDATES[:CLIENTS], KEYS[:CLIENTS])
    vectors = {
        client: wire.unpack(mechanism.coding, payload, size)
        for client, payload in enumerate(payloads)
    }
    sent = []

    def up(step, client, message):
        if step == "mask":
            sent.append(len(message))
        return message

    total = Round(terms_of(CLIENTS, dimension=size, bits=bits), vectors, up).total()
    noisy = total  # of the dtype in which a secure sum comes, which may be unsigned
    if mechanism.helper_noise:
        noisy = total.astype(np.int64) + parties_noise(mechanism, DIMENSION, SERVER)
        noisy %= 2**bits
    decoded = mechanism.decode(noisy, CLIENTS, DIMENSION)
    assert np.array_equal(decoded, mechanism.mean(payloads, DIMENSION, SERVER))
    assert set(sent) == {mechanism.upload_bytes(DIMENSION, CLIENTS)}
    if mechanism.helper_noise:
        return  # a sum of any clients
    with pytest.raises(ValueError, match=f"at least {CLIENTS} payloads"):
        mechanism.mean(payloads[1:], DIMENSION)
    with pytest.raises(ValueError, match=f"at least {CLIENTS} payloads"):
        mechanism.decode(total.astype(np.int64), CLIENTS - 1, DIMENSION)


MANY, ROTATED = 400, 32
LARGE = {
    name: each
    for name, each in built(MANY).items()
    if name in RANDOM and each.size(ROTATED) == ROTATED and name != "sign-sgd"
}


@pytest.mark.slow(after=3)
@of(LARGE)
def test_decoded_means_have_the_mean_and_the_spread_that_are_stated(mechanism):
    """Of clients with one update: what noise there is, as it was drawn, against `decoded`.

    A normal limit, of a sum of MANY draws; the sum of ROTATED squares, below 1e-6 on either side.
    """
    update = np.random.default_rng(2).normal(0, 1, ROTATED).astype(np.float32)
    update *= np.float32(0.9 / np.linalg.norm(update))
    keys = [Key.from_seed(5).fold_in(client) for client in range(MANY)]
    payloads = mechanism.encode_many(np.tile(update, (MANY, 1)), keys)
    mean = mechanism.mean(payloads, ROTATED, SERVER)
    turned = getattr(mechanism, "projection", lambda dimension: None)(ROTATED)
    if turned is None or turned.rotation is None:
        x, seen = update.astype(float), mean.astype(float)
    else:
        x, seen = turned.rotation.forward(update), turned.rotation.forward(mean)
    expected, variance = mechanism.decoded(x, ROTATED)
    added = mechanism.expected_error(ROTATED).sum_noise if mechanism.clip_norm else 0.0
    square = float(((seen - expected) ** 2 / (variance / MANY + (added / MANY) ** 2)).sum())
    low, high = stats.chi2.isf([1 - 5e-7, 5e-7], ROTATED)
    assert low < square < high

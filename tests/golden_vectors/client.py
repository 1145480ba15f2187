"""A second client, written from docs/golden-vectors.md: it imports nothing of randquant.

`tests/test_golden_vectors.py` compares it with the vectors, so that page and code must agree.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from decimal import Context, Decimal, localcontext
from typing import Any

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


# "Keys and words"


def seed_key(seed: int) -> bytes:
    return sha256(b"randquant simulation seed\0", number(seed))


def fold(key: bytes, *labels: int | str) -> bytes:
    def coded(label: int | str) -> bytes:
        if isinstance(label, int):
            return b"i" + number(label)
        return b"s" + number(len(label.encode())) + label.encode()

    return mac(key, *map(coded, labels))


def stream(key: bytes, count: int) -> bytes:
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(count))


def words(key: bytes, count: int) -> list[int]:
    return list(struct.unpack(f"<{count}Q", stream(key, 8 * count)))


# "From an update to coordinates"


def float32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


def clip(update: Sequence[float], norm: float) -> list[float]:
    limit = norm * (1 - 2**-22) - len(update) * 2**-150
    largest = max(map(abs, update))
    if largest == 0:
        return list(update)
    scaled = [x / largest for x in update]
    factor = min(largest, limit / math.sqrt(sum(x * x for x in scaled)))
    return [float32(x * factor) for x in scaled]


def signs(seed: int, size: int) -> list[float]:
    drawn = words(fold(seed_key(seed), "rotation"), -(-size // 64))
    return [1.0 - 2 * (drawn[k // 64] >> k % 64 & 1) for k in range(size)]


def hadamard(values: Sequence[float]) -> list[float]:
    x, half = list(values), 1
    while half < len(x):
        for k in range(len(x)):
            if not k & half:
                x[k], x[k + half] = x[k] + x[k + half], x[k] - x[k + half]
        half *= 2
    return [value / math.sqrt(len(x)) for value in x]


def rotate(update: Sequence[float], seed: int) -> list[float]:
    size = 1 << (len(update) - 1).bit_length()
    signed = [x * s for x, s in zip(update, signs(seed, size), strict=False)]
    return hadamard(signed + [0.0] * (size - len(update)))


def subset(size: int, count: int, seed: int) -> list[int]:
    key, chosen, read = fold(seed_key(seed), "subset"), set[int](), 0
    missing = least = min(count, size - count)
    while missing:
        drawn = words(key, read + missing + (read + missing) % 2)[read : read + missing]
        chosen |= {word % size for word in drawn}
        read, missing = read + missing, least - len(chosen)
    return sorted(chosen if 2 * count <= size else set(range(size)) - chosen)


# "From a coordinate to a code"


def draw(channel: Mapping[str, Any], coordinates: Sequence[float], key: bytes) -> list[dict]:
    """The code of each coordinate, with what leads to it."""
    inputs, units = channel["inputs"], 2**62 // channel["denominator"]
    count = len(coordinates) + len(coordinates) % 2
    first, second = words(fold(key, "draw"), count), words(fold(key, "tie"), count)
    drawn = []
    for x, word, tie in zip(coordinates, first, second, strict=False):
        x = min(max(x, inputs[0]), inputs[-1])
        cell = max(v for v in range(len(inputs) - 1) if v == 0 or inputs[v] <= x)
        width = 1 / (inputs[cell + 1] - inputs[cell])
        steps = int((x - inputs[cell]) * width * 2.0**32 + 0.5)
        vertex = cell + (word % 2**32 < steps)
        r2 = (word >> 32 << 30) + tie % 2**30
        code, threshold = -1, 0
        while threshold <= r2:
            code += 1
            threshold += channel["weights"][vertex][code] * units
        drawn.append({"steps": steps, "vertex": vertex, "code": code})
    return drawn


# "Payload"


def block(levels: int) -> tuple[int, int]:
    codes, bits = 1, (levels - 1).bit_length()
    if levels & (levels - 1) and levels <= 256:
        while 2 ** (100 * bits) > levels ** (101 * codes):
            codes += 1
            bits = (levels**codes - 1).bit_length()
    return codes, bits


def packed(codes: Sequence[int], levels: int) -> bytes:
    each, bits = block(levels)
    total = place = 0
    for start in range(0, len(codes), each):
        part, value = codes[start : start + each], 0
        for code in part:
            value = value * levels + code
        total |= value << place
        place += bits if len(part) == each else (levels ** len(part) - 1).bit_length()
    return total.to_bytes(-(-place // 8), "little")


def fingerprint(levels: int, *facts: Any) -> bytes:
    return sha256(repr((levels, *facts)).encode())[:16]


def channel_fingerprint(channel: Mapping[str, Any]) -> bytes:
    inputs, values, weights = channel["inputs"], channel["values"], channel["weights"]
    head = struct.pack("<3Q", len(inputs), len(values), channel["denominator"].bit_length())
    numbers = [x + 0.0 for x in (*inputs, *values)]
    rows = b"".join(struct.pack(f"<{len(values)}q", *row) for row in weights)
    packed_numbers = struct.pack(f"<{len(numbers)}d", *numbers)
    return sha256(b"randquant channel 1\0", head, packed_numbers, rows)[:16]


def payload(codes: Sequence[int], levels: int, name: bytes, padding: int = 0) -> bytes:
    version = 2 if padding == 0 else 3 if padding > 0 else 4
    count = len(codes) + (abs(padding) << 32)
    head = struct.pack("<4sBBHQ16s", b"RQPL", version, 0, levels % 2**16, count, name)
    body = packed(codes, levels)
    return head + sha256(head, body)[:8] + body


def masked(codes: Iterable[int], secrets: Iterable[tuple[bytes, int]], bits: int) -> list[int]:
    """Codes plus or minus the mask of each secret."""
    width = 1 if bits <= 8 else 2 if bits <= 16 else 4
    total = list(codes)
    for secret, sign in secrets:
        mask = stream(secret, width * len(total))
        for k in range(len(total)):
            total[k] += sign * int.from_bytes(mask[width * k : width * (k + 1)], "little")
    return [value % 2**bits for value in total]


# "Masks among clients": edwards25519, and one client's messages

FIELD, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
CURVE = -121665 * pow(121666, -1, FIELD) % FIELD
BASE = (
    15112221349535400772501151409588531511454012693041857206046113283949847762202,
    46316835694926478169428394003475163141307993866256225615783033603165251855960,
)


def added(p: Sequence[int], q: Sequence[int]) -> tuple[int, ...]:
    """In the extended coordinates of RFC 8032, section 5.1.4."""
    a, b = (p[1] - p[0]) * (q[1] - q[0]), (p[1] + p[0]) * (q[1] + q[0])
    c, d = 2 * CURVE * p[3] * q[3], 2 * p[2] * q[2]
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % FIELD, g * h % FIELD, f * g % FIELD, e * h % FIELD


def multiple(scalar: int, point: tuple[int, int] = BASE) -> tuple[int, int]:
    result, power = (0, 1, 1, 0), (*point, 1, point[0] * point[1] % FIELD)
    for bit in bin(scalar)[2:]:
        result = added(result, result)
        if bit == "1":
            result = added(result, power)
    inverse = pow(result[2], -1, FIELD)
    return result[0] * inverse % FIELD, result[1] * inverse % FIELD


def encoded(point: tuple[int, int]) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def decoded(point: bytes) -> tuple[int, int]:
    whole = int.from_bytes(point, "little")
    y = whole % 2**255
    square = (y * y - 1) * pow(CURVE * y * y + 1, -1, FIELD) % FIELD
    x = pow(square, (FIELD + 3) // 8, FIELD)
    if x * x % FIELD != square:
        x = x * pow(2, (FIELD - 1) // 4, FIELD) % FIELD
    return (x if x & 1 == whole >> 255 else FIELD - x), y


def scalar(drawn: bytes) -> int:
    return int.from_bytes(drawn, "little") % (ORDER - 1) + 1


def little(value: int) -> bytes:
    return value.to_bytes(32, "little")


def hkdf(secret: bytes, *context: bytes) -> bytes:
    info = b"".join(number(len(part)) + part for part in context)
    return mac(mac(bytes(32), secret), info, b"\1")


class SumClient:
    """One client in a sum in which all others are its neighbours."""

    def __init__(self, terms: Mapping[str, Any], me: int, secrets: Mapping[str, str]) -> None:
        session = bytes.fromhex(terms["session"])
        fields = ("clients", "dimension", "bits", "least", "neighbours", "threshold")
        values = [tuple(terms[f]) if f == "clients" else terms[f] for f in fields]
        offer = bytes.fromhex(terms["offer"])
        text = repr((session, *values)).encode()
        self.digest = sha256(b"randquant secure sum v4\0", offer, text)
        self.bits, self.threshold, self.me = terms["bits"], terms["threshold"], me
        self.holders = sorted(terms["clients"], key=lambda c: (mac(self.digest, number(c)), c))
        self.sealing = X25519PrivateKey.from_private_bytes(bytes.fromhex(secrets["sealing"]))
        self.masking, self.seed = (
            int.from_bytes(bytes.fromhex(secrets[name]), "little") for name in ("masking", "seed")
        )

    def context(self, first: int, second: int) -> bytes:
        return self.digest + number(first) + number(second)

    def advert(self) -> bytes:
        public = self.sealing.public_key().public_bytes_raw()
        return public + encoded(multiple(self.masking)) + encoded(multiple(self.seed))

    def view(self, adverts: Mapping[int, bytes]) -> bytes:
        parts = [number(c) + sha256(adverts[c]) for c in sorted(adverts)]
        return sha256(b"adverts", self.digest, *parts)

    def share(self, adverts: Mapping[int, bytes], random: Sequence[bytes]) -> dict[int, bytes]:
        """The dealing under this client's number, and the sealed shares for the others."""
        mine, drawn = self.advert(), iter(random)
        self.keys, self.masks = {}, {}
        for n, theirs in adverts.items():
            pair = self.context(min(n, self.me), max(n, self.me))
            pair += self.view({self.me: mine, n: theirs})
            shared = self.sealing.exchange(X25519PublicKey.from_public_bytes(theirs[:32]))
            self.keys[n] = hkdf(shared, b"seal", pair)
            y = multiple(self.masking, decoded(theirs[32:64]))[1]
            u = (1 + y) * pow(1 - y, -1, FIELD) % FIELD
            self.masks[n] = hkdf(little(u), b"mask", pair)
        blinds = [scalar(next(drawn)) for _ in range(2)]
        # Four polynomials: their values at place 0, then at 1, 2, ... as drawn.
        polynomials = [
            [at_zero, *(scalar(next(drawn)) for _ in range(self.threshold - 1))]
            for at_zero in (self.seed, self.masking, *blinds)
        ]
        places = range(len(self.holders) + 1)
        seed, key, *blind = ([continued(p, x) for x in places] for p in polynomials)
        commitments = b"".join(
            sha256(b"share", self.context(self.me, holder) + bytes([kind]), little(p[k]),
                   little(blind[kind][k]))[:16]
            for k, holder in enumerate(self.holders, 1)
            for kind, p in enumerate((seed, key))
        )  # fmt: skip
        points = mine[64:] + mine[32:64] + b"".join(encoded(multiple(b)) for b in blinds)
        digest = hashlib.sha512(b"challenge" + self.context(self.me, self.me) + points)
        digest.update(commitments)
        challenge = scalar(digest.digest())
        values = b"".join(
            little((blind[kind][x] + challenge * p[x]) % ORDER)
            for x in places
            for kind, p in enumerate((seed, key))
        )
        view = self.view({self.me: mine, **adverts})
        sent = {self.me: view + little(challenge) + commitments + values}
        for n in adverts:
            place, nonce = self.holders.index(n) + 1, next(drawn)
            shares = little(seed[place]) + little(key[place])
            sent[n] = nonce + AESGCM(self.keys[n]).encrypt(nonce, shares, self.context(self.me, n))
        return sent

    def mask(self, codes: Sequence[int], inbox: Mapping[int, bytes]) -> bytes:
        self.shares = {}
        for n, message in inbox.items():
            proof, sealed = message[:128], message[128:]
            opened = AESGCM(self.keys[n]).decrypt(
                sealed[:12], sealed[12:], self.context(n, self.me)
            )
            challenge = int.from_bytes(proof[:32], "little")
            for kind in (0, 1):
                share = int.from_bytes(opened[32 * kind : 32 * kind + 32], "little")
                value = int.from_bytes(proof[64 + 32 * kind : 96 + 32 * kind], "little")
                blind = (value - challenge * share) % ORDER
                context = self.context(n, self.me) + bytes([kind])
                committed = sha256(b"share", context, little(share), little(blind))[:16]
                assert committed == proof[32 + 16 * kind : 48 + 16 * kind]
            self.shares[n] = opened
        own = hkdf(little(self.seed), b"self", self.context(self.me, self.me))
        secrets = [(own, 1)] + [(self.masks[n], 1 if self.me < n else -1) for n in self.shares]
        name = fingerprint(2**self.bits, "masked", self.digest.hex(), str(self.me))
        return payload(masked(codes, secrets, self.bits), 2**self.bits, name)

    def confirm(self, survivors: Iterable[int]) -> dict[int, bytes]:
        self.survivors = sorted(survivors)
        digest = sha256(b"survivors", self.digest, *map(number, self.survivors))
        return {n: mac(self.keys[n], b"confirm", number(self.me), digest) for n in self.shares}

    def reveal(self) -> dict[int, bytes]:
        return {
            n: s[:32] if n in self.survivors else self.masks[n] + s[32:]
            for n, s in self.shares.items()
        }


def continued(values: Sequence[int], x: int) -> int:
    """The polynomial through (0, values[0]), (1, values[1]), ... at x, by Lagrange."""
    total = 0
    for j, value in enumerate(values):
        over = math.prod(x - i for i in range(len(values)) if i != j)
        under = math.prod(j - i for i in range(len(values)) if i != j)
        total += value * over * pow(under, -1, ORDER)
    return total % ORDER


# "A helper": HPKE of RFC 9180 in base mode, HKDF-SHA256, AES-256-GCM; X25519, or X-Wing


def hpke_extract(name: bytes, salt: bytes, label: bytes, secret: bytes) -> bytes:
    return mac(salt or bytes(32), b"HPKE-v1", name, label, secret)


def hpke_expand(name: bytes, key: bytes, label: bytes, context: bytes, size: int) -> bytes:
    head = size.to_bytes(2, "big") + b"HPKE-v1" + name + label + context
    return mac(key, head, b"\1")[:size]


def hpke_keys(kem: bytes, secret: bytes, info: bytes) -> tuple[AESGCM, bytes]:
    suite = b"HPKE" + kem + b"\0\1\0\2"
    schedule = b"\0" + hpke_extract(suite, b"", b"psk_id_hash", b"")
    schedule += hpke_extract(suite, b"", b"info_hash", info)
    root = hpke_extract(suite, secret, b"secret", b"")
    key = hpke_expand(suite, root, b"key", schedule, 32)
    return AESGCM(key), hpke_expand(suite, root, b"base_nonce", schedule, 12)


def hpke_seal(message: bytes, public: bytes, info: bytes, ephemeral: bytes) -> bytes:
    private = X25519PrivateKey.from_private_bytes(ephemeral)
    sent = private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    eae = hpke_extract(b"KEM\0\x20", b"", b"eae_prk", shared)
    secret = hpke_expand(b"KEM\0\x20", eae, b"shared_secret", sent + public, 32)
    cipher, nonce = hpke_keys(b"\0\x20", secret, info)
    return sent + cipher.encrypt(nonce, message, b"")


def hybrid_open(sealed: bytes, secret: bytes, info: bytes) -> bytes:
    """Open a seal of ML-KEM-768 and X25519, as the helper does."""
    lattice = MLKEM768PrivateKey.from_seed_bytes(secret[:64])
    curve = X25519PrivateKey.from_private_bytes(secret[64:])
    sent, rest = sealed[1088:1120], sealed[1120:]
    shared = curve.exchange(X25519PublicKey.from_public_bytes(sent))
    parts = lattice.decapsulate(sealed[:1088]), shared, sent, curve.public_key().public_bytes_raw()
    both = hashlib.sha3_256(b"".join(parts) + b"\\.//^\\").digest()
    cipher, nonce = hpke_keys(b"\x64\x7a", both, info)
    return cipher.decrypt(nonce, rest, b"")


def helper_digest(terms_text: str) -> bytes:
    return sha256(b"randquant helper sum\0", terms_text.encode())


def helper_message(
    terms_text: str, terms: Mapping[str, Any], client: int, codes: Sequence[int], seed: bytes,
    ephemeral: bytes,
) -> bytes:  # fmt: skip
    digest, bits = helper_digest(terms_text), terms["bits"]
    context = b"randquant helper seed\0" + digest + number(client)
    sealed = hpke_seal(seed, bytes.fromhex(terms["key"]["public"]), context, ephemeral)
    name = fingerprint(2**bits, "masked for a helper", digest.hex(), str(client))
    return b"RQH1" + sealed + payload(masked(codes, [(seed, 1)], bits), 2**bits, name)


# "Integer noise"


def thresholds(
    mode: int, up: Iterable[Decimal], down: Iterable[Decimal], limit: Decimal | None = None
) -> tuple[int, list[int]]:
    """The first integer, and the cumulative thresholds in units of 2**-192."""

    def side(ratios: Iterable[Decimal]) -> list[Decimal]:
        weights, weight = [], Decimal(1)
        for ratio in ratios:
            most = ratio if limit is None else limit
            if most < 1 and weight * most < Decimal(2) ** -200 * (1 - most):
                break
            weight *= ratio
            weights.append(weight)
        return weights

    with localcontext(Context(prec=80)):
        above, below = side(up), side(down)
        weights = [*reversed(below), Decimal(1), *above]
        unit, total, listed = Decimal(2**192) / sum(weights), Decimal(0), []
        for weight in weights[:-1]:
            total += weight
            listed.append(min(int(total * unit), 2**192 - 1))
    return mode - len(below), listed


def poisson(mean: float) -> tuple[int, list[int]]:
    mode, exact = math.floor(mean), Decimal(mean)
    with localcontext(Context(prec=80)):
        down = [k / exact for k in range(mode, 0, -1)]
    up = (exact / k for k in range(mode + 1, 10**9))
    return thresholds(mode, up, down)


def gaussian(variance: float) -> tuple[int, list[int]]:
    def ratios() -> Iterable[Decimal]:
        ratio = (Decimal(-1) / (2 * Decimal(variance))).exp()
        step = ratio * ratio
        while True:
            yield ratio
            ratio *= step

    return thresholds(0, ratios(), ratios())


def polya(scale: float, clients: int) -> tuple[int, list[int]]:
    with localcontext(Context(prec=80)):
        p = (Decimal(-1) / Decimal(scale)).exp()
    up = (p * (clients * k + 1) / (clients * k + clients) for k in range(10**9))
    return thresholds(0, up, (), p)


def noise(table: tuple[int, list[int]], count: int, key: bytes) -> list[int]:
    high = words(fold(key, "high"), count + count % 2)
    low = words(fold(key, "low"), 2 * count)
    first, listed = table
    draws = [high[k] << 128 | low[2 * k] << 64 | low[2 * k + 1] for k in range(count)]
    return [first + bisect_right(listed, draw) for draw in draws]


TABLES = {
    "DiscreteGaussian": gaussian,
    "Skellam": lambda variance: poisson(variance / 2),
    "DiscreteLaplace": polya,
}


def drawn_noise(law: Mapping[str, Any], count: int, key: bytes) -> list[int]:
    parameters = dict(law)
    name = parameters.pop("law")
    table = TABLES[name](**parameters)
    if name == "DiscreteGaussian":
        return noise(table, count, key)
    plus, minus = (noise(table, count, fold(key, side)) for side in ("plus", "minus"))
    return [a - b for a, b in zip(plus, minus, strict=True)]


def rounded(steps: Sequence[float], bound: int, key: bytes) -> list[int]:
    floors = [math.floor(x) for x in steps]
    limits = [int(min(x - f, 1 - 2**-53) * 2.0**64) for x, f in zip(steps, floors, strict=True)]
    attempt = 0
    while True:
        drawn = words(fold(key, attempt), len(steps) + len(steps) % 2)
        values = [f + (w < t) for f, w, t in zip(floors, drawn, limits, strict=False)]
        if sum(v * v for v in values) <= bound:
            return values
        attempt += 1

"""Ten small rounds with every intermediate value: python tests/golden_vectors/write.py

`docs/golden-vectors.md` explains the files, and `tests/test_golden_vectors.py` computes their steps
again from their inputs. All keys and random bytes here are public: use none of them elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402
from golden_vectors import client as second_client  # noqa: E402

import randquant as rq  # noqa: E402
from randquant.aggregation import (  # noqa: E402
    AdditiveMechanism,
    AuxiliaryNumbers,
    ChannelMechanism,
    Number,
    VectorMechanism,
    from_record,
)
from randquant.channels import wire  # noqa: E402
from randquant.mechanisms import noise  # noqa: E402
from randquant.secure_sums import (  # noqa: E402
    Client,
    HelperKey,
    HelperTerms,
    OpeningKey,
    SumServer,
    Terms,
    masked_message,
    proven_message,
    read_message,
    verify_key_commitment,
)
from randquant.secure_sums.helper import message, proven  # noqa: E402
from randquant.secure_sums.helper.prio3 import encode_input_share  # noqa: E402
from randquant.secure_sums.secagg import crypto  # noqa: E402
from randquant.statistics import Counts, Mean, survey  # noqa: E402

FORMAT = "randquant golden vectors, version 1"
UPDATE = [0.9, -0.25, 0.5, 0.0, -1.5, 0.125, 0.375, -0.0625, 0.25, -0.75, 1.0, 0.03125, -0.5]
SHORT = UPDATE[:6]
CODER = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)


class Draws:
    """Listed random bytes in the place of the operating system's."""

    def __init__(self, listed: list[str]) -> None:
        self._left = [bytes.fromhex(each) for each in listed]

    def __call__(self, count: int) -> bytes:
        drawn = self._left.pop(0)
        if len(drawn) != count:
            raise ValueError(f"Expected {count} random bytes to be drawn next, got {len(drawn)}.")
        return drawn


def made(label: str, *sizes: int) -> list[str]:
    """Random bytes of these sizes for the inputs of a vector."""
    return [
        hashlib.shake_256(f"randquant golden vectors {label} {k}".encode()).hexdigest(size)
        for k, size in enumerate(sizes)
    ]


@contextlib.contextmanager
def drawing(random: list[str], ephemeral: str = "") -> Iterator[None]:
    """Draw from a list, also the ephemeral key of a seal, which the library draws by itself."""

    def seal(key: HelperKey, seed: bytes, info: bytes) -> bytes:
        return second_client.hpke_seal(seed, key.public, info, bytes.fromhex(ephemeral))

    with contextlib.ExitStack() as changed:
        system = SimpleNamespace(urandom=Draws(random))
        # Not of `os` itself: compilers and others draw from it too.
        for module in (crypto, message, proven):
            changed.enter_context(mock.patch.object(module, "os", system))
        changed.enter_context(mock.patch.object(HelperKey, "seal", seal))
        yield


def words_of(key: rq.Key, count: int) -> list[str]:
    return [f"{int(word):016x}" for word in key.words(count)]


def key_of(inputs: Mapping[str, Any]) -> rq.Key:
    return rq.Key(bytes.fromhex(inputs["key"]))


def split(payload: bytes) -> dict[str, str]:
    head = payload[: wire.HEADER_BYTES]
    return {"header": head.hex(), "body": payload[len(head) :].hex()}


def drawn(channel: rq.Channel, x: np.ndarray, key: rq.Key) -> dict[str, Any]:
    """The draws of a channel's codes, coordinate by coordinate."""
    x = np.clip(x, -channel.clip, channel.clip)
    cell, position = channel.locate(x)
    words, tie = (key.fold_in(label).words(x.size) for label in ("draw", "tie"))
    dither = (position * 2.0**32 + 0.5).astype(np.int64)
    return {
        "draw words": [f"{int(word):016x}" for word in words],
        "tie words": [f"{int(word):016x}" for word in tie],
        "dither thresholds": dither.tolist(),
        "vertices": (cell + ((words % 2**32).astype(np.int64) < dither)).tolist(),
        "codes": rq.encode(channel, x, key).tolist(),
    }


def encoded(inputs: Mapping[str, Any], update: Any = None) -> dict[str, Any]:
    """A whole update through one channel."""
    update = np.array(inputs["update"] if update is None else update, np.float64)
    mechanism, key = from_record(inputs["mechanism"]), key_of(inputs)
    steps: dict[str, Any] = {"channel fingerprint": mechanism.channel.fingerprint.hex()}
    coordinates = update
    if isinstance(mechanism, VectorMechanism):
        projection = mechanism.projection(update.size)
        rotation = projection.rotation
        whole = VectorMechanism(mechanism.channel, mechanism.clip_norm).projection(update.size)
        one = np.eye(1, rotation.dimension)[0]
        steps["clipped"] = rq_clip(update, mechanism.clip_norm)
        # The first rotated coordinate of a unit vector is its sign over the root of the size.
        steps["signs"] = [
            int(np.sign(rotation.forward(np.roll(one, k))[0])) for k in range(update.size)
        ]
        steps["rotated"] = whole.forward(update).tolist()
        coordinates = projection.forward(update)
        if mechanism.coordinates is not None:
            steps |= {"subset": projection.indices.tolist(), "kept": coordinates.tolist()}
    steps |= drawn(mechanism.channel, coordinates, key)
    payload = mechanism.encode(update, key)
    codes = wire.unpack(mechanism.coding, payload, coordinates.size)
    assert codes.tolist() == steps["codes"]
    return steps | {"payload fingerprint": mechanism.coding.fingerprint.hex(), **split(payload)}


def rq_clip(update: np.ndarray, norm: float) -> list[float]:
    from randquant.aggregation.clipping import clip_to_norm

    return clip_to_norm(update, norm).tolist()


def local(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As `encoded`; and the payload as an engine sends it, addressed to session and client."""
    from randquant.rounds.protocol import addressed

    steps, mechanism = encoded(inputs), from_record(inputs["mechanism"])
    payload = bytes.fromhex(steps["header"] + steps["body"])
    session, client = bytes.fromhex(inputs["session"]), inputs["client"]
    sent = addressed(mechanism, payload, session, client, len(steps["codes"]))
    return {**steps, "addressed": sent.hex()}


def hexed(messages: Mapping[int, bytes]) -> dict[str, str]:
    return {str(n): message.hex() for n, message in sorted(messages.items())}


def sum_client(terms: Terms, number: int, secrets: Mapping[str, Any]) -> Client:
    """A client with given secrets: what `Client.to_bytes` saves before the first step."""
    state = {
        "terms": terms.digest.hex(), "directory": False, "stage": "advertise", "number": number,
        **{name: secrets[name] for name in ("sealing", "masking", "seed")},
        "survivors": [], "keys": {}, "masks": {}, "shares": {},
    }  # fmt: skip
    return Client.from_bytes(terms, json.dumps(state).encode())


def among_clients(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All clients encode and deal; one is gone before it has uploaded."""
    record = inputs["terms"]
    terms = Terms(
        bytes.fromhex(record["session"]), tuple(record["clients"]),
        **{n: record[n] for n in ("dimension", "bits", "least", "neighbours", "threshold")},
        offer=bytes.fromhex(record["offer"]),
    )  # fmt: skip
    mechanism, server, by = from_record(inputs["mechanism"]), SumServer(terms), inputs["clients"]
    clients = {int(n): sum_client(terms, int(n), each) for n, each in by.items()}
    encodings = {n: encoded({**inputs, **by[str(n)]}) for n in clients}
    adverts = {n: each.advertise() for n, each in clients.items()}
    introduced, sent = server.introduce(adverts), {}
    for n, each in clients.items():
        with drawing(by[str(n)]["random"]):
            sent[n] = each.share(introduced[n])
    masked = {}
    forwarded = server.forward(sent)
    for n in inputs["survivors"]:
        masked[n] = clients[n].mask(np.array(encodings[n]["codes"], np.uint8), forwarded[n])
        server.add(n, masked[n])
    survivors = server.close()
    confirmed = {n: clients[n].confirm(survivors) for n in survivors}
    relayed = server.relay(confirmed)
    revealed = {n: clients[n].reveal(relayed[n]) for n in survivors}
    total = server.unmask(revealed)
    mean = mechanism.decode(total, len(survivors), len(by["0"]["update"]), terms.bits)
    private = {n: json.loads(clients[n].to_bytes()) for n in clients}
    steps = {
        str(n): {
            "encoding": encodings[n],
            "advert": adverts[n].hex(),
            "pair keys": private[n]["keys"],
            "pair mask secrets": private[n]["masks"],
            "sent to share": hexed(sent[n]),
            "received to mask": hexed(forwarded[n]),
            **({"masked": masked[n].hex()} if n in masked else {}),
            **({"sent to confirm": hexed(confirmed[n])} if n in confirmed else {}),
            **({"revealed": hexed(revealed[n])} if n in revealed else {}),
        }
        for n in clients
    }
    return {
        "terms digest": terms.digest.hex(), "holders": list(terms.share_holders(0)),
        "clients": steps, "sum": total.tolist(), "mean": mean.tolist(),
    }  # fmt: skip


def helper_terms(inputs: Mapping[str, Any]) -> tuple[HelperTerms, OpeningKey]:
    secret, identity = (bytes.fromhex(inputs[n]) for n in ("helper secret", "helper identity"))
    opening = OpeningKey("X25519", secret, Ed25519PrivateKey.from_private_bytes(identity))
    record = dict(inputs["terms"])
    commitment = b""
    if "verify key" in inputs:
        commitment = verify_key_commitment(bytes.fromhex(inputs["verify key"]))
    session, offer = (bytes.fromhex(record.pop(name)) for name in ("session", "offer"))
    terms = HelperTerms(session, opening.key, **record, offer=offer, commitment=commitment)
    return terms, opening


def helped(
    inputs: Mapping[str, Any], codes: list[int], message_of: Callable[..., bytes]
) -> tuple[HelperTerms, bytes, dict[str, Any]]:
    """The terms, a client's one message, and what the helper opens."""
    terms, opening = helper_terms(inputs)
    number = inputs["client"]
    identity = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(inputs["helper identity"]))
    with drawing(inputs["random"], inputs["ephemeral"]):
        pinned = identity.public_key().public_bytes_raw()
        sent = message_of(terms, number, np.array(codes, np.uint32), pinned)
    read = proven.read_proven if terms.largest else read_message
    sealed, _ = read(terms, sent)
    info = message.context(terms.digest, number) + sealed.bound
    seed = opening.open(sealed.sealed, info)
    assert seed is not None
    assert seed.hex() == inputs["random"][0]
    return terms, sent, {
        "terms text": terms.to_text(), "terms digest": terms.digest.hex(),
        "seal info": info.hex(), "sealed seed": sealed.sealed.hex(),
    }  # fmt: skip


def with_helper(inputs: Mapping[str, Any]) -> dict[str, Any]:
    encoding = encoded(inputs)
    return {"encoding": encoding, **masked_for_helper(inputs, encoding["codes"])}


def masked_for_helper(inputs: Mapping[str, Any], codes: list[int]) -> dict[str, Any]:
    terms, sent, steps = helped(inputs, codes, masked_message)
    vector = sent[4 + terms.key.sealed_bytes :]
    return {**steps, "masked": split(vector), "message": sent.hex()}


def integer_noise(inputs: Mapping[str, Any]) -> dict[str, Any]:
    mechanism, key = from_record(inputs["mechanism"]), key_of(inputs)
    update = np.array(inputs["update"], np.float64)
    plan = mechanism.plan(update.size)
    on_grid = mechanism.projection(update.size).forward(update) * plan.scale
    added = plan.noise.draw(plan.size, key.fold_in("noise"))
    payload = mechanism.encode(update, key)
    codes = wire.unpack(mechanism.coding, payload, plan.size).tolist()
    rounded = [c - int(n) for c, n in zip(codes, added, strict=True)]
    half = 1 << (mechanism.bits - 1)
    return {
        "scale": plan.scale, "bound": plan.bound,
        "steps": on_grid.tolist(),
        "rounding words": words_of(key.fold_in("round").fold_in(0), plan.size),
        "rounded": [(r + half) % (2 * half) - half for r in rounded],
        **noise_facts(plan.noise, plan.size, key), "codes": codes,
        "payload fingerprint": mechanism.coding.fingerprint.hex(), **split(payload),
        **masked_for_helper(inputs, codes),
    }  # fmt: skip


def noise_facts(law: Any, count: int, key: rq.Key) -> dict[str, Any]:
    """A draw of noise: the first words of each side, and its table by a digest."""
    name = type(law).__name__
    table = NOISE_TABLES[name](law)
    listed = [
        (int(high) << 128 | low).to_bytes(24, "big")
        for high, low in zip(table.high, table.low, strict=True)
    ]
    sides = [["plus"], ["minus"]] if name != "DiscreteGaussian" else [[]]
    return {
        "law": {"law": name, **dataclasses.asdict(law)},
        "table": {
            "first": table.first, "thresholds": len(listed),
            "middle threshold": listed[len(listed) // 2].hex(),
            "sha256": hashlib.sha256(b"".join(listed)).hexdigest(),
        },
        "high words": [
            words_of(functools.reduce(rq.Key.fold_in, ["noise", *side, "high"], key), count)
            for side in sides
        ],
        "noise": law.draw(count, key.fold_in("noise")).tolist(),
    }  # fmt: skip


NOISE_TABLES: dict[str, Callable[[Any], Any]] = {
    "DiscreteGaussian": lambda law: noise._gaussian_table(law.variance),
    "Skellam": lambda law: noise._poisson_table(law.variance / 2),
    "DiscreteLaplace": lambda law: noise._polya_table(law.scale, law.clients),
}


def gaussian(inputs: Mapping[str, Any]) -> dict[str, Any]:
    mechanism, key = from_record(inputs["mechanism"]), key_of(inputs)
    update = np.array(inputs["update"], np.float64)
    payload = mechanism.encode(update, key)
    clipped = rq_clip(update, mechanism.clip_norm)
    sent = np.frombuffer(payload, "<f4")
    return {
        "clipped": clipped, "deviation": mechanism.deviation,
        "philox key": words_of(key.fold_in("noise"), 2),
        "sent": sent.tolist(), "payload": payload.hex(),
    }  # fmt: skip


def proven_sum(inputs: Mapping[str, Any]) -> dict[str, Any]:
    encoding = encoded(inputs)
    terms, sent, steps = helped(inputs, encoding["codes"], proven_message)
    prio3 = proven.prio3_for(terms)
    sealed, leader = proven.read_proven(terms, sent)
    helper = proven.helper_share(bytes.fromhex(inputs["random"][0]))
    verify_key, digest = bytes.fromhex(inputs["verify key"]), terms.digest
    share, verifier = proven.leader_verifier(terms, digest, verify_key, sealed.bound, leader)
    total = proven.helper_total(terms, digest, [bytes.fromhex(inputs["random"][0])])
    added = prio3.field.integers(prio3.field.vec_add(share, total))
    assert added == encoding["codes"]
    return {
        "encoding": encoding, **steps,
        "prio3": {
            "bits": prio3.flp.MEAS_LEN, "chunk length": prio3.flp.PROVE_RAND_LEN // 2,
            "proofs": prio3.PROOFS, "context": proven.proof_context(digest).hex(),
        },
        "nonce": sealed.bound[:16].hex(), "public share": sealed.bound[16:].hex(),
        "helper share": bytes(encode_input_share(prio3, helper)).hex(),
        "leader share": bytes(encode_input_share(prio3, leader)).hex(),
        "verifier of the leader": verifier.hex(),
        "output share of the helper": bytes(prio3.field.encode_vec(total)).hex(),
        "message": sent.hex(),
    }  # fmt: skip


def with_numbers(inputs: Mapping[str, Any]) -> dict[str, Any]:
    numbers = tuple(map(Number.read, inputs["numbers"]))
    both = AuxiliaryNumbers(inputs["mechanism"]["clip_norm"], numbers, inputs["weight"])
    joined = both.join(np.array(inputs["update"]), inputs["values"])
    return {"joined": joined.tolist(), **encoded(inputs, joined)}


def surveyed(inputs: Mapping[str, Any]) -> dict[str, Any]:
    mechanism, key = from_record(inputs["mechanism"]), key_of(inputs)
    terms = mechanism.terms
    vector = mechanism.update(inputs["record"], key)
    payload = mechanism.encode(vector, key)
    rounding = {n: words_of(key.fold_in("rounding", n).fold_in(0), 2) for n in terms.queries}
    return {
        "rounding words": rounding,
        "vector": vector[: terms.dimension].astype(int).tolist(),
        "digest numbers": vector[terms.dimension :].astype(int).tolist(),
        **noise_facts(terms.law, terms.dimension, key),
        "payload fingerprint": mechanism.coding.fingerprint.hex(), **split(payload),
    }  # fmt: skip


def hybrid(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A seal of the other suite, whose randomness is the library's: it is opened, not made."""
    opening = OpeningKey(
        "MLKEM768_X25519", bytes.fromhex(inputs["helper secret"]),
        Ed25519PrivateKey.from_private_bytes(bytes.fromhex(inputs["helper identity"])),
    )  # fmt: skip
    seed = opening.open(bytes.fromhex(inputs["sealed seed"]), bytes.fromhex(inputs["seal info"]))
    assert seed is not None
    return {"public": opening.key.public.hex(), "seed": seed.hex()}


def tie_channel(key: rq.Key) -> rq.Channel:
    """Whose first threshold lies inside the range that the first 32 bits of the draw leave open."""
    word = int(key.fold_in("draw").words(1)[0])
    at = ((word >> 32) << 30) + 2**29
    return rq.Channel([-1.0, 1.0], [-1.0, 1.0], [[at, 2**62 - at]] * 2, 2**62)


def rounds() -> dict[str, tuple[str, Callable[..., dict[str, Any]], dict[str, Any]]]:
    """By name: what it shows, the function of its steps, and its inputs."""
    key, session = made("key", 32)[0], b"run 1, round 1"
    secret, identity, ephemeral, seed = made("helper", 32, 32, 32, 32)
    aggregate = VectorMechanism(CODER, 1.0, "aggregate", 3)
    one_bit = VectorMechanism(CODER, 1.0).record()
    helper = {
        "helper secret": secret, "helper identity": identity, "ephemeral": ephemeral,
        "client": 7, "random": [seed],
    }  # fmt: skip

    def helper_inputs(mechanism: Any, update: list[float], **terms: Any) -> dict[str, Any]:
        size = mechanism.size(len(update))
        terms = {
            "session": session.hex(), "cohort": 20, "least": 2, "dimension": size,
            "bits": mechanism.sum_bits(len(update), 20), "offer": "00" * 32, **terms,
        }  # fmt: skip
        record = mechanism.record()
        return {"mechanism": record, "update": update, "key": key, **helper, "terms": terms}

    clients = {
        str(n): {
            "update": SHORT[n:] + SHORT[:n],
            "key": made(f"key of {n}", 32)[0],
            "sealing": made(f"sealing {n}", 32)[0],
            **{name: second_client.little(second_client.scalar(bytes.fromhex(drawn))).hex()
               for name, drawn in zip(("masking", "seed"), made(f"secrets {n}", 64, 64),
                                      strict=True)},
            "random": made(f"dealing {n}", *[64] * 6, 12, 12, 12),
        }
        for n in range(4)
    }  # fmt: skip
    terms = {
        "session": session.hex(), "clients": [0, 1, 2, 3], "dimension": 8,
        "bits": aggregate.sum_bits(6, 4), "least": 3, "neighbours": 3, "threshold": 2,
        "offer": made("offer", 32)[0],
    }  # fmt: skip
    levels = rq.rqm(clip=1.0, margin=0.5, levels=5, keep=0.5)
    noisy = AdditiveMechanism("skellam", 1.0, 1.0, 20, bits=10)
    asked = survey(
        {"age": Mean(0, 100), "sex": Counts(["f", "m"])}, 4.0, 1e-5, "local", clients=50, records=50
    )
    # Coarser than is chosen, so that the table of the noise is short.
    asked = dataclasses.replace(
        asked, amplitudes={"age": 32, "sex": 32}, law=noise.DiscreteLaplace(40.0)
    )
    numbers = (Number("accuracy"), Number("num-examples", 0, 200))
    hybrid_secret, info = made("hybrid", 96, 40)
    return {
        "one-bit-local": ("one bit a coordinate, seen by the server", local, {
            "mechanism": one_bit, "update": UPDATE, "key": key, "session": session.hex(),
            "client": 7}),
        "one-bit-among-clients": ("one bit under masks among four clients, one of which is lost",
            among_clients, {"mechanism": aggregate.record(), "terms": terms, "clients": clients,
                            "survivors": [0, 1, 3]}),
        "one-bit-helper": ("one bit under a mask whose seed is sealed for a helper", with_helper,
            helper_inputs(aggregate, SHORT)),
        "five-levels": ("RQM with five levels, no power of two", encoded, {
            "mechanism": ChannelMechanism(levels, "local", 1).record(), "update": UPDATE[:8],
            "key": key}),
        "skellam-helper": ("Skellam noise under a mask for a helper", integer_noise,
            helper_inputs(noisy, SHORT)),
        "discrete-gaussian-helper": ("discrete Gaussian noise under a mask for a helper",
            integer_noise, helper_inputs(
                AdditiveMechanism("discrete-gaussian", 1.0, 1.0, 20, bits=10), SHORT)),
        "gaussian": ("Gaussian noise in floats", gaussian, {
            "mechanism": {"mechanism": "local-gaussian", "clip_norm": 1.0,
                          "noise_in_clip_norms": 2.0}, "update": SHORT, "key": key}),
        "proven-sum": ("one bit with proofs that it is one", proven_sum, {
            **helper_inputs(aggregate, SHORT, largest=1), "verify key": made("verify", 32)[0],
            "random": made("proven", 32, 16, 64)}),
        "auxiliary-numbers": ("an update with its number of examples and an accuracy",
            with_numbers, {"mechanism": one_bit, "update": SHORT, "key": key,
                           "numbers": [n.text for n in numbers], "weight": "num-examples",
                           "values": {"accuracy": 0.75, "num-examples": 50}}),
        "subset": ("three of eight rotated coordinates", encoded, {
            "mechanism": VectorMechanism(CODER, 1.0, coordinates=3).in_round(11).record(),
            "update": SHORT, "key": key}),
        "survey": ("one record of a survey, with noise of its own", surveyed, {
            "mechanism": rq.SurveyMechanism(asked).record(),
            "record": {"age": 30.0, "sex": "m"}, "key": key}),
        "tie": ("a draw that the first 32 bits leave open", encoded, {
            "mechanism": ChannelMechanism(tie_channel(rq.Key(bytes.fromhex(key))), "local",
                                          1).record(), "update": [0.25], "key": key}),
        "hybrid-seal": ("a seed sealed with ML-KEM-768 and X25519", hybrid, {
            "helper secret": hybrid_secret, "helper identity": identity, "seal info": info,
            "sealed seed": hybrid_seal(hybrid_secret, identity, info, seed)}),
    }  # fmt: skip


def hybrid_seal(secret: str, identity: str, info: str, seed: str) -> str:
    """The seal in the file, as long as it is one: its randomness cannot be chosen."""
    path = HERE / "hybrid-seal.json"
    if path.exists():
        return json.loads(path.read_text())["inputs"]["sealed seed"]
    signer = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(identity))
    key = OpeningKey("MLKEM768_X25519", bytes.fromhex(secret), signer).key
    return key.seal(bytes.fromhex(seed), bytes.fromhex(info)).hex()


def text_of(vector: dict[str, Any]) -> str:
    """JSON with each list of numbers on a line of its own."""
    text = json.dumps(vector, indent=1)
    lists = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
    return lists.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def main() -> None:
    for name, (shows, steps, inputs) in rounds().items():
        # Through JSON, as a reader gets them.
        inputs = json.loads(json.dumps(inputs))
        vector = {"format": FORMAT, "shows": shows, "inputs": inputs, "steps": steps(inputs)}
        (HERE / f"{name}.json").write_text(text_of(vector))


if __name__ == "__main__":
    main()

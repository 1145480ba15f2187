"""Hostile bytes for every parser: python tests/fuzz.py [INPUTS [SEED]], or `make fuzz`.

Inputs are good ones, damaged: bits, bytes, lengths, splices, and for JSON any value anywhere.
Payloads, checkpoints and states get a right checksum again half of the time, to come past it. A
parser must give a ValueError or TypeError that says what was expected, or else a result that fits
its bytes; soon, and in memory that those bytes justify.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz_flower
import fuzz_helper
import fuzz_nvflare
import numpy as np
import problems
import stores
from damage import damaged, damaged_json
from flwr.serverapp.strategy import FedAdam

import randquant as rq
from randquant._internal import files, to_json
from randquant.aggregation import ChannelMechanism, VectorMechanism
from randquant.channels import wire
from randquant.integrations.flower import strategy as flower_strategy
from randquant.privacy import channel_record, load_channel
from randquant.rounds import (
    ACCOUNT_RECORD,
    THIS_CLIENT,
    AnswerLedger,
    Offer,
    RoundEvent,
    RunAccountant,
    accountant,
    read_terms,
    terms_text,
)
from randquant.secure_sums import Client, SumServer, Terms, random_word
from randquant.training import RoundMetrics, RunStore, SentRounds, State
from randquant.training.config import digest

SECONDS = 10
BYTES_PER_BYTE, SPARE = 400, 4_000_000  # JSON takes many times its text
DIMENSION = 37
CHANNELS = [
    rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42),
    rq.stochastic_rounding(clip=1.0, levels=3, margin=0.5),
    rq.stochastic_rounding(clip=1.0, levels=60, margin=0.5),
]
WIDE = wire.Format.from_facts(2**18, "fuzz")


@dataclass(frozen=True)
class Target:
    """A parser: good inputs, how to damage one, and what reads and checks it.

    One input takes `cost` times as long as most: tests try so many fewer.
    """

    seeds: Callable[[], list[bytes]]
    damage: Callable[[random.Random, bytes], bytes]
    read: Callable[[bytes, Path], None]
    cost: int = 1


def _payloads() -> list[bytes]:
    rng = np.random.default_rng(0)
    good = [
        wire.pack(channel, rng.integers(0, channel.levels, DIMENSION).astype(np.uint8))
        for channel in CHANNELS
    ]
    return [*good, wire.pack(WIDE, rng.integers(0, WIDE.levels, DIMENSION).astype(np.uint32))]


def _damaged_payload(rng: random.Random, data: bytes) -> bytes:
    out = damaged(rng, data)
    if rng.random() < 0.5 and len(out) >= wire.HEADER_BYTES:
        checksum = hashlib.sha256(out[:32] + out[40:]).digest()[:8]
        out = out[:32] + checksum + out[40:]
    return out


def _read_payload(data: bytes, _folder: Path) -> None:
    refused: list[ValueError] = []
    for coding in (*CHANNELS, WIDE):
        totals = np.zeros(DIMENSION, dtype=np.int64)
        try:
            codes = wire.unpack(coding, data, DIMENSION)
            wire.add(coding, data, totals)
        except ValueError as error:
            assert not totals.any(), "a refused payload was added"
            refused.append(error)
            continue
        assert codes.shape == (DIMENSION,), "another dimension"
        assert int(codes.max()) < coding.levels, "a code that does not exist"
        assert wire.pack(coding, codes) == data, "not the codes of these bytes"
        assert np.array_equal(totals, codes), "another sum"
    if len(refused) == len(CHANNELS) + 1:
        raise refused[-1]


def _channels() -> list[bytes]:
    return [json.dumps(to_json(channel_record(c))).encode() for c in CHANNELS]


def _read_channel(data: bytes, folder: Path) -> None:
    path = folder / "channel.json"
    path.write_bytes(data)
    channel, certificate = load_channel(path)
    again = channel_record(channel, certificate)
    said = json.loads(data)
    assert again["fingerprint"] == said["fingerprint"], "another channel"
    assert certificate.epsilon.upper >= 0, "no certificate"
    assert (channel.weights.sum(axis=1) == channel.denominator).all(), "no distribution"


MADE_WITH = bytes(range(32)).hex()


def _checkpoints() -> list[bytes]:
    made = State(7, np.linspace(0, 1, 50, dtype=np.float32), np.arange(9))
    return [made.to_bytes(MADE_WITH)]


def _read_checkpoint(data: bytes, folder: Path) -> None:
    made = State.from_bytes(data, MADE_WITH, folder)
    assert (made.round, made.parameters.shape, made.participations.shape) == (7, (50,), (9,))
    assert files.unpack_arrays(data)[0]["round"] == 7


def _damaged_sealed(rng: random.Random, data: bytes) -> bytes:
    """What a sealed record says, half of the time with a right checksum, or the bytes of it."""
    if rng.random() < 0.5:
        return damaged_json(rng, data)
    plain = json.dumps({k: v for k, v in json.loads(data).items() if k != files.CHECKSUM})
    try:
        return json.dumps(files.seal(json.loads(damaged_json(rng, plain.encode())))).encode()
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
        return damaged(rng, data)  # it cannot be sealed


def _sealed(record: Any) -> list[bytes]:
    return [json.dumps(files.seal(record)).encode()]


CONFIG = problems.config_of("digits", "softmax", "rqm", {"clip": 1.0, "levels": 16}, clip_norm=1.0)
SENT = SentRounds(digest(CONFIG), "ab" * 32, 3, 9, 2, 1.5, 1e-5, "replace_one")


def _stored(folder: Path) -> RunStore:
    """A store of a run that has sent its rounds."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    store = RunStore(folder / "run")
    store.create({"config": CONFIG, "sent": SENT})
    return store


def _read_config(data: bytes, folder: Path) -> None:
    store = _stored(folder)
    stores.put(store.folder, "config", data.decode(errors="replace"))
    config = store.config()
    again = json.loads(json.dumps(files.seal(config)))
    assert again.keys() >= json.loads(data).keys(), "a field was lost"


def _read_sent(data: bytes, folder: Path) -> None:
    store = _stored(folder)
    stores.put(store.folder, "sent", data.decode(errors="replace"))
    sent = store.sent_rounds()
    assert 0 <= sent.participations <= sent.declared, "more participations than rounds"
    assert sent.settings == SENT.settings, "another run"
    said = {"commitment": "", "asked": False, **json.loads(data)}
    apart = {"epsilon": 0, files.CHECKSUM: ""}
    assert {**files.seal(sent), **apart} == {**said, **apart}, "another"


ROUNDS = [
    RoundMetrics(
        round=n,
        accuracy=0.5,
        loss=1.0,
        train_loss=1.0,
        bytes_up=100,
        seconds_gradient=0.1,
        seconds_protect=0.1,
        seconds_evaluate=0.0,
        participations=n,
        epsilon=0.5 * n,
        delta=1e-5,
        neighboring="replace_one",
    )
    for n in (1, 2, 3)
]


def _stored_rounds() -> list[bytes]:
    """A line for each round, as it is stored."""
    with tempfile.TemporaryDirectory() as folder:
        store = _stored(Path(folder))
        for each in ROUNDS:
            store.commit(each)
        return ["\n".join(content for _, content in stores.rounds_of(store.folder)).encode()]


def _damaged_rounds(rng: random.Random, data: bytes) -> bytes:
    """Lines that are dropped, doubled or moved, or their bytes."""
    lines = data.split(b"\n")
    match rng.randrange(4):
        case 0:
            return b"\n".join(rng.choices(lines, k=rng.randrange(1, 6)))
        case 1:
            return b"\n".join(rng.sample(lines, k=len(lines)))
        case _:
            return damaged(rng, data)


def _read_rounds(data: bytes, folder: Path) -> None:
    store = _stored(folder)
    stores.put_rounds(store.folder, list(enumerate(data.decode(errors="replace").split("\n"), 1)))
    found = store.read()
    assert list(found.metrics) == ROUNDS[: len(found.metrics)], "other rounds"


OFFERS = [
    Offer(ChannelMechanism(CHANNELS[0]), DIMENSION),
    Offer(VectorMechanism(CHANNELS[1], 1.0, "aggregate", 40, rotation_seed=7), DIMENSION),
    Offer(VectorMechanism(CHANNELS[1], 1.0, coordinates=3), DIMENSION),
]


def _offers() -> list[bytes]:
    return [offer.to_text().encode() for offer in OFFERS]


def _read_offer(data: bytes, _folder: Path) -> None:
    offer = Offer.from_text(data.decode(errors="replace"))
    said, mechanism = json.loads(data), offer.mechanism
    assert offer.dimension == said["dimension"], "another dimension"
    assert offer.size == said["coordinates"] if offer.needs_seed else offer.size >= offer.dimension
    assert list(offer.parts) == said["parts"], "other parts"
    assert offer.buffers == said["buffers"], "other buffers"
    assert mechanism.channel.fingerprint.hex() == said["channel"]["fingerprint"], "another channel"
    for name in ("trust", "cohort", "clip_norm", "rotation_seed", "coordinates"):
        if name in said:
            assert getattr(mechanism, name) == said[name], f"another {name}"
    assert Offer.from_text(offer.to_text()) == offer, "no way back"


def _accountant() -> RunAccountant:
    return RunAccountant(1e-5, max_epsilon=8.0)


def _account() -> RunAccountant:
    found = _accountant()
    for offer, count in zip(OFFERS, (3, 2, 1), strict=True):
        found.compose(RoundEvent(offer, frozenset({THIS_CLIENT})), count)
    return found


def _ledgers() -> list[bytes]:
    kept: dict[str, dict[str, Any]] = {}
    with AnswerLedger(_account(), None, kept).locked() as ledger:
        for step in ("advertise", "upload"):
            ledger.take(b"a round", step)
        ledger.save()
    return [kept[ACCOUNT_RECORD]["account"]]


def _damaged_ledger(rng: random.Random, data: bytes) -> bytes:
    """Another account or other steps, mostly with right checksums."""
    record, out = json.loads(data), damaged_json(rng, data)
    if rng.random() < 0.5:
        return out
    with contextlib.suppress(Exception):  # it is no record any more
        inner = damaged_json(rng, json.dumps(record["account"]).encode())
        told = {name: part for name, part in json.loads(inner).items() if name != "checksum"}
        account = {**told, "checksum": accountant._checksum(told)}
        steps = json.loads(damaged_json(rng, json.dumps(record["steps"]).encode()))
        digest = hashlib.sha256(b"".join(sorted(map(bytes.fromhex, steps)))).hexdigest()
        sealed = files.seal({"written": record["written"], "account": account}, digest)
        out = json.dumps({**sealed, "steps": steps}).encode()
    return out


def _read_ledger(data: bytes, _folder: Path) -> None:
    found = _accountant()
    kept: dict[str, dict[str, Any]] = {ACCOUNT_RECORD: {"account": data}}
    with AnswerLedger(found, None, kept).locked() as ledger:
        assert ledger.accountant is found  # read now
        ledger.save()
    said, written = json.loads(data), json.loads(kept[ACCOUNT_RECORD]["account"])
    assert written["steps"] == sorted(bytes.fromhex(step).hex() for step in said["steps"]), (
        "other steps"
    )
    assert len(set(written["steps"])) == len(written["steps"]), "a step twice"
    assert written["written"] == said["written"] + 1
    _same_counts(said["account"], found)
    with AnswerLedger(_accountant(), None, kept).locked() as again:
        assert again.accountant.state_dict() == found.state_dict(), "no way back"


def _same_counts(said: dict, found: RunAccountant) -> None:
    """What an account says is what is counted: none is lost, none of another offer."""
    clients = list(said["clients"].values())
    total = sum(sum(counts.values()) for counts in clients)
    assert found.answers(THIS_CLIENT) == total, "another number of answers"
    state = found.state_dict()
    [spent] = state["clients"].values() if clients else [{}]  # type: ignore[union-attr]
    counted = {state["offers"][int(n)]: count for n, count in spent.items()}  # type: ignore[index]
    for n, count in clients[0].items() if clients else ():
        assert counted[Offer.from_text(said["offers"][int(n)]).to_text()] == count, "another offer"


def _damaged_state(rng: random.Random, data: bytes) -> bytes:
    """Other bytes, or another head, mostly with the right checksum."""
    start = files.HASH_BYTES + 8
    end = start + int.from_bytes(data[start - 8 : start], "little")
    if rng.random() < 0.5:
        out = damaged(rng, data)
    else:
        text = damaged_json(rng, data[start:end])
        out = data[: start - 8] + len(text).to_bytes(8, "little") + text + data[end:]
    if rng.random() < 0.8:
        body = out[files.HASH_BYTES :]
        out = hashlib.sha256(body).digest() + body
    return out


def _states() -> list[bytes]:
    strategy = FedAdam()
    strategy.m_t = {"w": np.arange(3.0), "empty": np.zeros((0, 2), dtype=">f4")}
    strategy.v_t = [np.full(2, float(n)) for n in range(12)]  # type: ignore[assignment]
    return [files.pack_arrays({"rounds": 3}, flower_strategy.arrays_in(strategy))]


def _read_state(data: bytes, _folder: Path) -> None:
    strategy, other = FedAdam(), FedAdam()
    fields = set(vars(strategy))
    try:
        record, arrays = files.unpack_arrays(data)
    except ValueError as error:  # as the store says it
        raise ValueError(f"Expected the state of a run, but: {error}.") from error
    again, same = files.unpack_arrays(files.pack_arrays(record, arrays))
    assert (again, list(same)) == (record, list(arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(same[name], array)
    flower_strategy.restore(strategy, arrays, {})
    assert set(vars(strategy)) == fields, "a new attribute"
    flower_strategy.restore(other, flower_strategy.arrays_in(strategy), {})
    assert repr(vars(other)) == repr(vars(strategy))


TERMS = Terms(b"fuzz", (3, 5, 8, 13), DIMENSION, bits=6, least=3)


def _terms() -> list[bytes]:
    return [terms_text(TERMS).encode()]


def _read_terms(data: bytes, _folder: Path) -> None:
    terms = read_terms(data.decode(errors="replace"), TERMS.session, DIMENSION, "an offer")
    said = json.loads(data)
    assert terms.neighbours < len(terms.clients) == len(set(said["clients"])), "other clients"
    assert 3 * terms.threshold >= 2 * terms.neighbours or terms.threshold == said["threshold"]
    assert terms.most_accusers <= terms.neighbours - terms.threshold + 1
    assert read_terms(terms_text(terms), TERMS.session, DIMENSION, "an offer") == terms, (
        "no way back"
    )


class _Sum:
    """A secure sum as far as its masked vectors, and what one client sent at each step."""

    def __init__(self) -> None:
        clients = {c: Client(TERMS, c) for c in TERMS.clients}
        self.server, self.word = SumServer(TERMS), random_word(4, TERMS.threshold)
        self.adverts = {c: client.advertise() for c, client in clients.items()}
        at = self.server.introduce(self.adverts)
        self.sealed = {c: clients[c].share(inbox) for c, inbox in at.items()}
        inboxes = self.server.forward(self.sealed)
        self.payload = clients[3].mask(np.zeros(DIMENSION, dtype=np.uint8), inboxes[3])

    def read(self, data: bytes) -> None:
        kind, message = data[:1], data[1:]
        if kind == b"a":
            server = SumServer(TERMS)
            relayed = server.introduce({**self.adverts, 3: message})
            if 3 in server.refused:
                raise ValueError(server.refused[3])
            assert relayed[5][3] == message, "another advert"
        elif kind == b"d":
            self.server._dealing(3, {**self.sealed[3], 3: message}, self.word)
            assert message == self.sealed[3][3], "commitments to something else"
        else:
            _, accused = self.server._read(3, message)
            assert message[: len(self.payload)] == self.payload, "another vector"
            assert accused <= {5, 8, 13}, "an accusation of strangers"


_sum = functools.cache(_Sum)


def _sums() -> list[bytes]:
    return [b"a" + _sum().adverts[3], b"d" + _sum().sealed[3][3], b"p" + _sum().payload]


def _read_sum(data: bytes, _folder: Path) -> None:
    _sum().read(data)


TARGETS = {
    "payload": Target(_payloads, _damaged_payload, _read_payload),
    "channel file": Target(_channels, damaged_json, _read_channel),
    "checkpoint": Target(_checkpoints, damaged, _read_checkpoint),
    "configuration": Target(lambda: _sealed(CONFIG), _damaged_sealed, _read_config),
    "what was sent": Target(lambda: _sealed(SENT), _damaged_sealed, _read_sent),
    "rounds of a run": Target(_stored_rounds, _damaged_rounds, _read_rounds),
    "offer": Target(_offers, damaged_json, _read_offer),
    "account of a client": Target(_ledgers, _damaged_ledger, _read_ledger, cost=5),
    "message to a client on Flower": Target(
        fuzz_flower.seeds, fuzz_flower.damage, fuzz_flower.read, cost=5
    ),
    "message on NVFlare": Target(
        fuzz_nvflare.seeds, fuzz_nvflare.damage, fuzz_nvflare.read, cost=5
    ),
    "state of a server": Target(_states, _damaged_state, _read_state),
    "terms of a secure sum": Target(_terms, damaged_json, _read_terms),
    "messages of a secure sum": Target(_sums, damaged, _read_sum),
    "messages of a sum with a helper": Target(
        fuzz_helper.seeds, fuzz_helper.damage, fuzz_helper.read
    ),
}


class Hang(BaseException):
    """A parser took too long."""


@contextlib.contextmanager
def _soon():
    def late(signum, frame):
        raise Hang(f"more than {SECONDS} seconds of a processor")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fuzz(name: str, inputs: int, seed: int, folder: Path, weigh_every: int = 10) -> int:
    """Try so many inputs; how many were accepted. AssertionError names the input that was not met.

    Every `weigh_every`th input the memory is measured too.
    """
    target, rng, accepted = TARGETS[name], random.Random(f"{name} {seed}"), 0
    seeds = target.seeds()
    for good in seeds:
        target.read(good, folder)
    for number in range(inputs):
        data = target.damage(rng, rng.choice(seeds))
        weigh = number % weigh_every == 0
        if weigh:
            tracemalloc.start()
        try:
            with _soon():
                target.read(data, folder)
            accepted += 1
        except (ValueError, TypeError) as error:
            if not str(error).startswith("Expected"):
                raise AssertionError(
                    f"{name}, input {number}: {data[:300]!r}: {error!r}"
                ) from error
        except BaseException as error:
            raise AssertionError(
                f"{name}, seed {seed}, input {number}: {data[:300]!r}: {error!r}"
            ) from error
        finally:
            peak = tracemalloc.get_traced_memory()[1] if weigh else 0
            tracemalloc.stop()
        if peak > SPARE + BYTES_PER_BYTE * len(data):
            raise AssertionError(
                f"{name}, input {number}: {peak} bytes for {len(data)}: {data[:300]!r}"
            )
    return accepted


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # which logs every refusal
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    start = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    with tempfile.TemporaryDirectory() as scratch:
        for each in TARGETS:
            found = fuzz(each, total // len(TARGETS), start, Path(scratch), weigh_every=100)
            print(
                f"{each}: {total // len(TARGETS)} inputs, seed {start}, {found} accepted",
                flush=True,
            )

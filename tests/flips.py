"""Changed files and payloads: python tests/flips.py [BYTES [SEED]], by default 200.

Of every kind of file that the product writes and reads again, so many changes of a byte and as
many of a digit, one at a time. Prints how many were refused, how many were read as before (a
change of white space), and how many were accepted with another content: these must be none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import problems
import torch
from flower_grid import context_of, ledger_of
from flower_rounds import fedavg, grid_of, model, noisy
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import config_record_from_proto, config_record_to_proto
from flwr.proto.recorddict_pb2 import ConfigRecord as ConfigRecordProto
from google.protobuf.message import DecodeError
from interrupted import SMALL
from torch import nn

import randquant as rq
from randquant._internal import from_json
from randquant.aggregation import UpdateMechanism, VectorMechanism, update_mechanism
from randquant.channels import wire
from randquant.integrations import ClientState, QuantizedStrategy
from randquant.privacy import channel_record
from randquant.rounds import MEMBERSHIP_RECORD, Membership, RunAccountant, ServerStore, terms_text
from randquant.training import RunStore, State, TrainConfig, read_run, train
from randquant.training.execution import Binding
from randquant.training.run_store import BASELINE, NAME, commitment, read_finished, run_key

REFUSED = (ValueError, TypeError, OSError)


@dataclass(frozen=True)
class Kind:
    """A file, and what is read of it; two equal contents have equal text."""

    name: str
    path: Path
    read: Callable[[], Any]


def flipped(rng: random.Random, good: bytes, digits: bool) -> bytes:
    """One other byte, or one other digit."""
    wanted = b"0123456789"
    places = [at for at, byte in enumerate(good) if not digits or byte in wanted]
    at = rng.choice(places)
    others = sorted({*(wanted if digits else range(256))} - {good[at]})
    return good[:at] + bytes([rng.choice(others)]) + good[at + 1 :]


def flips(kind: Kind, count: int, seed: int) -> tuple[int, int, int]:
    """(refused, as before, accepted with another content) of `count` bytes and as many digits."""
    rng, good = random.Random(f"{kind.name} {seed}"), kind.path.read_bytes()
    before, refused, same, other = repr(kind.read()), 0, 0, 0
    has_digits = any(byte in b"0123456789" for byte in good)
    try:
        for digits in (False, True) if has_digits else (False,):
            for _ in range(count):
                kind.path.write_bytes(flipped(rng, good, digits))
                try:
                    found = repr(kind.read())
                except REFUSED:
                    refused += 1
                    continue
                same += found == before
                other += found != before
    finally:
        kind.path.write_bytes(good)
    return refused, same, other


def kinds(folder: Path) -> Iterator[Kind]:
    """Every kind of file, made in a folder."""
    yield from _runs(folder / "runs")
    yield from _mechanisms(folder / "mechanisms")
    yield from _servers(folder)
    yield from _payloads(folder / "payloads")


def _hex(array: np.ndarray) -> str:
    return array.tobytes().hex()


# Runs

NOISE = {"clip_norm": 1.0, "noise_multiplier": 2.0}
SECRET = SMALL.changed(
    mechanism="stochastic-rounding",
    trust="aggregate",
    clip_norm=0.5,
    parameters={"clip": 0.005, "levels": 2, "margin": 0.0005},
    seed=None,
)


def _run(folder: Path, name: str = "run", config: TrainConfig = SMALL) -> Iterator[Kind]:
    folder.mkdir(exist_ok=True)
    home = folder / name
    problems.create_run(home, config.changed(baseline=config is SMALL))
    problems.train_run(home)
    yield from _of_run(name, home)


def _runs(folder: Path) -> Iterator[Kind]:
    yield from _run(folder)
    yield from _run(folder, "run with a secret key", SECRET)
    torch.manual_seed(1)
    drawn = [(torch.randn(4, 20), torch.arange(4) % 6) for _ in range(12)]
    some = update_mechanism("skellam", NOISE, cohort=4, coordinates=10)
    home = folder / "of rq.train"
    train(
        nn.Linear(20, 6), drawn, mechanism=some, rounds=4, cohort=4,
        server=rq.Server(checkpoint_every=2), progress=False, folder=home,
    )  # fmt: skip
    yield from _of_run("run of rq.train", home)


def _of_run(name: str, home: Path) -> Iterator[Kind]:
    yield Kind(f"{name}: {NAME}", home / NAME, lambda: _said(home))
    if (home / BASELINE).exists():
        yield Kind(f"{name}: {BASELINE}/{NAME}", home / BASELINE / NAME, lambda: _said(home))


def _said(home: Path) -> tuple:
    """All that is stated of a finished run, and what it would go on with."""
    parts = []
    for folder in (home, home / BASELINE):
        if not folder.exists():
            continue
        found = read_run(folder)
        if found.state != "finished":
            raise ValueError(found.error)
        store = RunStore(folder)
        sent = store.sent_rounds()
        for part in ("initial", "latest"):
            if content := store.state(part):
                at = State.from_bytes(content, sent.identity, store.path)
                whole = [_hex(at.parameters), _hex(at.participations), at.round]
                parts += [whole, repr(at.optimizer)]
        parts += [found, store.config(), sent]
    own = RunStore(home)
    problem = from_json(Binding, own.record("problem"))
    return (*parts, problem, _key(own), read_finished(home))


def _key(store: RunStore) -> str:
    config = store.config()
    key = run_key(config, store)
    if store.sent_rounds().commitment != commitment(config, key):
        raise ValueError("Expected the secret key that the run began with.")  # as `_setup`
    return _hex(key.words(4))


# Mechanisms, channels


def _mechanisms(folder: Path) -> Iterator[Kind]:
    folder.mkdir()
    for name, mechanism in MECHANISMS.items():
        path = folder / f"{len(list(folder.iterdir()))}.json"
        rq.save(mechanism, path)
        yield Kind(f"saved mechanism: {name}", path, lambda path=path: rq.load(path).record())
    path = folder / "channel.json"
    rq.save_channel(path, CHANNEL)
    yield Kind("channel", path, lambda: channel_record(*rq.load_channel(path)))


CHANNEL = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.7)
MECHANISMS: dict[str, UpdateMechanism] = {
    "vector": VectorMechanism(CHANNEL, 1.0, "aggregate", 40, rotation_seed=7),
    "coordinates": VectorMechanism(CHANNEL, 1.0, coordinates=3),
    "skellam": update_mechanism("skellam", NOISE, cohort=4),
}


# What is sent

DIMENSION = 37
UPDATE = np.linspace(-0.2, 0.2, DIMENSION).astype(np.float32)


def _payloads(folder: Path) -> Iterator[Kind]:
    folder.mkdir()
    for name, mechanism in MECHANISMS.items():
        sending = mechanism.in_round(5)
        path = folder / f"{name}.payload"
        path.write_bytes(sending.encode(UPDATE, rq.Key.generate()))

        def read(path: Path = path, sending: UpdateMechanism = sending) -> tuple:
            payload = path.read_bytes()
            if sending.coding is None:
                return _hex(sending.mean([payload] * sending.cohort, DIMENSION)), payload.hex()
            return (wire.unpack(sending.coding, payload, sending.size(DIMENSION)).tolist(),)

        yield Kind(f"payload: {name}", path, read)


# Engines


def _servers(folder: Path) -> Iterator[Kind]:
    path = folder / "flower" / "server.sqlite"
    kept = []

    def note(step: str, node: int, reply: Message) -> list[Message]:
        if (step, node) == ("share", 1):
            kept.append(grid.contexts[1].state[MEMBERSHIP_RECORD])
        return [reply]

    grid = grid_of(fault=note)
    grid.contexts[1] = context_of(folder / "account1")
    strategy = QuantizedStrategy(fedavg(), noisy(cohort=3), folder=folder / "flower")
    strategy.start(grid, model(), 3)  # type: ignore[arg-type]

    def server() -> tuple:
        found = ServerStore(path).read()
        accountant = RunAccountant(1e-5)
        accountant.load_state_dict(found.account)
        arrays = [(name, array.shape, _hex(array)) for name, array in found.arrays.items()]
        return found.run, found.progress, found.history, arrays, accountant.state_dict()

    yield Kind("state of a server", path, server)
    yield _accountant(folder / "accountant", strategy.accountant)

    def account() -> tuple:
        with ledger_of(grid.contexts[1]).locked() as ledger:
            return ledger.accountant.state_dict(), sorted(ledger._taken)

    yield Kind("account of a client", folder / "account1", account)
    yield _part_in_a_sum(folder, kept[-1])


def _accountant(path: Path, accountant: RunAccountant) -> Kind:
    """The state of an accountant, for whoever keeps it in a file of their own."""
    path.write_text(json.dumps(accountant.state_dict()))

    def read() -> dict:
        again = RunAccountant(1e-5)
        again.load_state_dict(json.loads(path.read_text()))
        return again.state_dict()

    return Kind("accountant", path, read)


def _part_in_a_sum(folder: Path, record: ConfigRecord) -> Kind:
    """What a client keeps of a sum between two messages; Flower keeps it, as bytes."""
    path, session = folder / "part", record["session"]
    assert isinstance(session, bytes)
    path.write_bytes(config_record_to_proto(record).SerializeToString())

    def read() -> tuple:
        try:
            kept = config_record_from_proto(ConfigRecordProto.FromString(path.read_bytes()))
        except (DecodeError, AttributeError) as error:  # Flower's own, before any of ours
            raise ValueError("Expected a record of Flower's.") from error
        state = RecordDict({MEMBERSHIP_RECORD: kept})
        own = Membership.recall(ClientState(Context(1, 1, {}, state, {})), session, {})
        assert own.client is not None
        return own.offer.to_text(), terms_text(own.client.terms), own.client.to_bytes(), own.part

    return Kind("part of a client in a sum", path, read)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    number, start = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((1, 200), (2, 0)))
    accepted = 0
    with tempfile.TemporaryDirectory() as scratch, contextlib.suppress(KeyboardInterrupt):
        for each in kinds(Path(scratch)):
            refused, same, other = flips(each, number, start)
            accepted += other
            print(f"{each.name}: {refused} refused, {same} as before, {other} other", flush=True)
    sys.exit(f"{accepted} accepted with another content" if accepted else 0)

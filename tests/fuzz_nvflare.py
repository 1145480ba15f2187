"""Hostile messages on NVFlare: a server's task at a site, and a site's answer at the server.

A site must answer, or refuse in one of our own sentences without being charged. A server must take
the codes that were sent, or refuse in one safe line of its log. NVFlare decodes the bytes before.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from damage import damaged, damaged_json
from nvflare.apis.shareable import Shareable
from nvflare_job import Server, asked, context_of, passed, result

from randquant.integrations import REQUEST, SESSION, TERMS, QuantizeFilter, site_number
from randquant.integrations.nvflare import PAYLOAD, read_answer
from randquant.rounds import THIS_CLIENT

SITE = "va"
VALUES: list[Any] = [
    None, True, -1, 0.5, math.nan, "", "x\nrandquant: refused: y", "9" * 5000, b"", b"\xff" * 96,
    bytes(16), [], [1], {}, {"a": 1}, {1: 2}, np.zeros(3), np.array(["x"]), np.array([1j]), object,
]  # fmt: skip
TASK, ANSWER = b"t", b"a"
"""Which message an input damages; the rest of it is what the damage is drawn from."""


@functools.cache
def _job() -> tuple[Server, Shareable, Shareable]:
    """A server, its task, and a site's answer."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-nvflare-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        server = Server(folder, min_clients=1)
        task = asked(server)
        reply = passed(server.filters[SITE], SITE, task, lambda *_: result())
    return server, task, reply


def seeds() -> list[bytes]:
    """A task and an answer, unchanged."""
    return [TASK, ANSWER]


def damage(rng: random.Random, data: bytes) -> bytes:
    """One of all changes of the message."""
    return data + rng.randbytes(8)


def _changed(data: bytes, message: Shareable) -> Shareable:
    """The message that an input stands for."""
    message, rng = Shareable.from_bytes(message.to_bytes()), random.Random(data)
    for _ in range(rng.choice([1, 1, 2, 3]) if data[1:] else 0):
        _change(rng, message)
    return message


def _change(rng: random.Random, message: dict) -> None:
    headers, dxo = message.get("__headers__"), message.get("DXO")
    places: list[Any] = [message, headers, dxo]
    if isinstance(dxo, dict):
        places.append(dxo.get("data"))
    if isinstance(headers, dict) and isinstance(text := headers.get(REQUEST), str):
        if rng.random() < 0.5:
            with contextlib.suppress(ValueError, RecursionError):  # it was damaged before
                told = damaged_json(rng, text.encode(errors="replace"))
                headers[REQUEST] = told.decode(errors="replace")
            return
        if rng.random() < 0.1:
            headers[REQUEST] = json.dumps(
                {**json.loads(text), "examples": rng.choice([3, -1, "x"])}
            )
            return
    place = rng.choice([each for each in places if isinstance(each, dict) and each] or [message])
    keys = [*place, REQUEST, SESSION, TERMS, PAYLOAD, ""]
    key = rng.choice(keys)
    match rng.randrange(4):
        case 0:
            place.pop(key, None)
        case 1 if isinstance(place.get(key), bytes):
            place[key] = damaged(rng, place[key])
        case 2 if isinstance(array := place.get(key), np.ndarray) and array.dtype.kind == "f":
            with np.errstate(all="ignore"):
                place[key] = rng.choice([
                    array[..., None], array.astype("f8") * 1e300, array.astype("i4"), array * np.nan
                ])  # fmt: skip
        case _:
            place[key] = rng.choice(VALUES)


def read(data: bytes, folder: Path) -> None:
    """Give it to a site or a server that is where it was when the message came.

    Raises:
        ValueError: it was refused.
    """
    (_read_task if data[:1] == TASK else _read_answer)(data, folder)


def _read_task(data: bytes, folder: Path) -> None:
    _, task, good = _job()
    shutil.rmtree(folder / "sites", ignore_errors=True)
    site = QuantizeFilter(1e9, str(folder / "sites"))
    try:
        task = Shareable.from_bytes(_changed(data, task).to_bytes())
    except Exception as error:  # NVFlare's own, before any of ours
        raise ValueError("Expected a message of NVFlare's.") from error
    try:
        reply = passed(site, SITE, task, lambda *_: result())
    except (TypeError, ValueError) as error:
        assert not (folder / "sites" / f"{SITE}.account").exists(), "charged for a refusal"
        own = str(error).startswith(("Expected ", "In '"))
        raise ValueError("Expected another task." if own else f"not ours: {error}") from error
    with site._member(context_of(SITE)).ledger.locked() as ledger:
        assert ledger.accountant.answers(THIS_CLIENT) == 1, "an answer was not counted"
    assert set(reply["__headers__"]) == set(good["__headers__"]), "a header leaves a site"
    assert set(reply["DXO"]["data"]) == {PAYLOAD}, "something else leaves a site"


def _read_answer(data: bytes, _folder: Path) -> None:
    server, _, good = _job()
    server.log.clear()
    site, now = site_number(SITE), copy.copy(server.sum)
    answer = read_answer(_changed(data, good), now.session, now.most)
    now.take([(site, answer)])
    if not now.clients:
        line = next(line for line in server.log if f"client {site} to" in line)
        assert line.isprintable(), "a line of its own in the log"
        assert len(line) < 700, "a log of megabytes"
        assert "dropped: Expected" in line, f"not our sentence: {line}"
        raise ValueError("Expected another answer.")
    wanted = copy.copy(server.sum)
    wanted.take([(site, read_answer(good, now.session, now.most))])
    assert np.array_equal(now.mean(), wanted.mean()), "other codes"

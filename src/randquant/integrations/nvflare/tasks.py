"""The messages of a round as NVFlare's tasks and results; names of sites."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.shareable import Shareable

from randquant._internal import validate
from randquant.channels.encoding import floats
from randquant.rounds.protocol import SESSION_BYTES, UPLOAD, NoAnswer, RoundMessage
from randquant.secure_sums.secagg.terms import ProtocolError

REQUEST, SESSION, PAYLOAD = "randquant.request", "randquant.session", "randquant.payload"
TERMS, PROOF = "randquant.terms", "randquant.proof"
"""Headers of a task, and the field of an answer."""


def task_of(
    request: RoundMessage, model: Mapping[str, np.ndarray], headers: Mapping[str, Any]
) -> Shareable:
    """A task: a model to train, and what its update is asked for as."""
    task = DXO(DataKind.WEIGHTS, dict(model)).to_shareable()
    own = {REQUEST: request.offer, SESSION: request.session, TERMS: request.terms,
           PROOF: request.proof}  # fmt: skip
    for name, value in {**own, **headers}.items():
        task.set_header(name, value)
    return task


def request_in(task: Shareable) -> RoundMessage:
    """Undo `task_of`; ValueError if it is another task."""
    text, session = _header(task, REQUEST), _header(task, SESSION)
    if not (isinstance(text, str) and isinstance(session, bytes)):
        raise ValueError("Expected a task of QuantizeController, got another: it has no request.")
    if len(session) != SESSION_BYTES:
        raise ValueError(f"Expected a session of {SESSION_BYTES} bytes, got {len(session)}.")
    head: dict[str, Any] = {"step": UPLOAD, "session": session, "offer": text}
    for name, header in (("terms", TERMS), ("proof", PROOF)):
        if (value := _header(task, header)) is not None:
            head[name] = value
    return RoundMessage.read(head)


def result_of(answer: RoundMessage) -> Shareable:
    """A result with a payload, and nothing else."""
    return DXO(DataKind.APP_DEFINED, {PAYLOAD: answer.update}).to_shareable()


def read(result: Shareable, session: bytes) -> RoundMessage | Exception:
    """Undo `result_of`, for a round; an error if it is another result."""
    try:
        code = _header(result, ReservedKey.RC)
        if code not in (None, ReturnCode.OK):
            raise NoAnswer(f"Expected an update, got none ({code}): see the site's log.")
        answer = data_of(result)
        payload = answer.data.get(PAYLOAD) if answer.data_kind == DataKind.APP_DEFINED else None
        if not isinstance(payload, bytes):
            kind = f"{answer.data_kind} without a payload in bytes"
            raise ProtocolError(f"Expected codes, got {kind}: a site needs QuantizeFilter.")
        return RoundMessage(UPLOAD, session, payload=payload)
    except Exception as error:  # any error that a malicious answer causes
        return error


def data_of(message: Shareable) -> DXO:
    """The data of a task or an answer; ValueError if there are none."""
    try:
        return from_shareable(message)
    except Exception as error:  # any error that a malicious message causes
        raise ValueError("Expected a message with data, got one without.") from error


def arrays_of(data: DXO) -> dict[str, np.ndarray]:
    """The arrays of a model or an update, copied: training may change them in place."""
    arrays: Any = data.data
    if not isinstance(arrays, dict) or not all(isinstance(name, str) for name in arrays):
        raise ValueError(f"Expected arrays by name, got a {type(arrays).__name__}.")
    return {name: _copied(array) for name, array in arrays.items()}


def numbers_of(data: DXO) -> dict[str, float]:
    """The single numbers among the metrics that came with a model or an update, by name."""
    metrics: Any = data.get_meta_prop(MetaKey.INITIAL_METRICS)
    named = metrics.items() if isinstance(metrics, dict) else ()
    single: dict[str, Any] = {name: v for name, v in named if isinstance(v, numbers.Real)}
    return single


def _copied(array: Any) -> np.ndarray:
    """An array or tensor as a new array; floats of 16 bits as those of 32."""
    try:
        found, widen = floats(array)
    except TypeError:  # counters and other integers
        return np.asarray(array).copy()
    return widen(found).copy()


def _header(message: Shareable, name: str) -> Any:
    """A header of a message; None if it has none."""
    try:
        return message.get_header(name)
    except ValueError:  # its headers are something else
        return None


def site_name(name: object) -> str:
    """The name of a site; ValueError unless it can be in a file's name, a key and a line of a log.

    Example:
        >>> site_name("cleveland")
        'cleveland'
    """
    if (
        not (isinstance(name, str) and name and name.isprintable())
        or ":" in name
        or Path(name).name != name
    ):
        raise ValueError(
            "Expected the name of a site in printable characters, without ':' and slashes, got "
            f"{validate.shown(name)}: provision it under another name."
        )
    return name


def number(site: str) -> int:
    """A site's number in accounts: a hash of its name, which NVFlare authenticates.

    Of two sites with one number only one is ever asked.
    """
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "little")

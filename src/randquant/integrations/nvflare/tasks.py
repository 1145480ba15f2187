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

REQUEST = "randquant.request"
SESSION = "randquant.session"
TERMS = "randquant.terms"
PROOF = "randquant.proof"
"""Headers of a task."""

PAYLOAD = "randquant.payload"
"""The field of an answer."""


def build_task(
    request: RoundMessage, model: Mapping[str, np.ndarray], headers: Mapping[str, Any]
) -> Shareable:
    """Return a task to train a model, with the request for its update in the headers."""
    task = DXO(DataKind.WEIGHTS, dict(model)).to_shareable()
    request_headers = {
        REQUEST: request.offer, SESSION: request.session, TERMS: request.terms,
        PROOF: request.proof,
    }  # fmt: skip
    for name, value in {**request_headers, **headers}.items():
        task.set_header(name, value)
    return task


def request_in(task: Shareable) -> RoundMessage:
    """Read the request of a task that `build_task` made.

    Raises:
        ValueError: the task has none, or it is malformed.
    """
    # The refusal does not repeat what the task holds, which is whatever the server has sent.
    text, session = _header(task, REQUEST), _header(task, SESSION)
    if not (isinstance(text, str) and isinstance(session, bytes)):
        raise ValueError("Expected a task of QuantizeController, got a task without a request.")
    if len(session) != SESSION_BYTES:
        raise ValueError(f"Expected a session of {SESSION_BYTES} bytes, got {len(session)}.")
    head: dict[str, Any] = {"step": UPLOAD, "session": session, "offer": text}
    for name, header in (("terms", TERMS), ("proof", PROOF)):
        if (value := _header(task, header)) is not None:
            head[name] = value
    return RoundMessage.read(head)


def build_result(answer: RoundMessage) -> Shareable:
    # A new result: nothing that training has put into its own goes with the payload.
    return DXO(DataKind.APP_DEFINED, {PAYLOAD: answer.update}).to_shareable()


def read(result: Shareable, session: bytes) -> RoundMessage | Exception:
    # An error is returned and not raised: the sum logs it, and goes on without the site.
    try:
        code = _header(result, ReservedKey.RC)
        if code not in (None, ReturnCode.OK):
            raise NoAnswer(f"Expected an update, got the return code {code}: see the site's log.")
        answer = read_data(result)
        payload = answer.data.get(PAYLOAD) if answer.data_kind == DataKind.APP_DEFINED else None
        if not isinstance(payload, bytes):
            kind = f"{answer.data_kind} without a payload in bytes"
            raise ProtocolError(f"Expected codes, got {kind}: a site needs QuantizeFilter.")
        return RoundMessage(UPLOAD, session, payload=payload)
    except Exception as error:  # any error that a malicious answer causes
        return error


def read_data(message: Shareable) -> DXO:
    try:
        return from_shareable(message)
    except Exception as error:  # any error that a malicious message causes
        raise ValueError("Expected a message with data, got a message without data.") from error


def read_arrays(data: DXO) -> dict[str, np.ndarray]:
    """Return copies of the arrays of a model or an update: training may change them in place."""
    arrays: Any = data.data
    if not isinstance(arrays, dict) or not all(isinstance(name, str) for name in arrays):
        raise ValueError(f"Expected arrays by name, got a {type(arrays).__name__}.")
    return {name: _copy(array) for name, array in arrays.items()}


def read_numbers(data: DXO) -> dict[str, float]:
    """Return the single numbers among the metrics of a model or an update, by name."""
    metrics: Any = data.get_meta_prop(MetaKey.INITIAL_METRICS)
    named = metrics.items() if isinstance(metrics, dict) else ()
    single: dict[str, Any] = {name: v for name, v in named if isinstance(v, numbers.Real)}
    return single


def _copy(array: Any) -> np.ndarray:
    try:
        values, widen = floats(array)
    except TypeError:  # counters and other integers
        return np.asarray(array).copy()
    # NumPy has no bfloat16, and differences in 16 bits would be rounded.
    return widen(values).copy()


def _header(message: Shareable, name: str) -> Any:
    try:
        return message.get_header(name)
    except ValueError:  # of a malformed message, whose headers are not a dictionary
        return None


def site_name(name: object) -> str:
    """Return the name of a site if it can be in a file's name, a key and a line of a log.

    Raises:
        ValueError: it cannot.

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
    """Return a site's number in accounts: a hash of its name, which NVFlare authenticates.

    Should two sites have the same number, only one of them takes part.
    """
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "little")

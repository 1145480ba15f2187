"""Checkpoints: where a run stands, as bytes with a checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from randquant.training.algorithm import State
from randquant.training.optimizer import from_tensors, to_tensors


def to_bytes(state: State, identity: str) -> bytes:
    """Return the state of a run with that identity."""
    arrays, text = to_tensors(state.optimizer)
    tensors = {
        "parameters": state.parameters,
        "participations": state.participations,
        "round": np.array([state.round], dtype=np.int64),
        "identity": _bytes(identity),
        "optimizer": np.frombuffer(text.encode(), dtype=np.uint8),
        **arrays,
    }
    tensors["checksum"] = _checksum(tensors)
    return safetensors.numpy.save(tensors)


def from_bytes(content: bytes, identity: str, path: Path) -> State:
    """Return the state of the run with that identity; `path` is where it was, for messages.

    Raises:
        ValueError: the content is damaged, or of another run.
    """
    try:
        tensors = safetensors.numpy.load(content)
        checksum = tensors.pop("checksum")
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"Expected a checkpoint in {path}, got a damaged one: {error}") from None
    if not np.array_equal(checksum, _checksum(tensors)):
        raise ValueError(f"Expected a checkpoint in {path} with the right checksum: it is damaged.")
    if not np.array_equal(tensors["identity"], _bytes(identity)):
        raise ValueError(
            f"Expected the configuration that the checkpoint in {path} was made with, got another: "
            "its rounds would not have the guarantee that is printed. Restore its run or begin a "
            "new one."
        )
    optimizer = from_tensors(tensors, bytes(tensors["optimizer"]).decode())
    return State(
        int(tensors["round"][0]), tensors["parameters"], tensors["participations"], optimizer,
    )  # fmt: skip


def _bytes(identity: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(identity), dtype=np.uint8)


def _checksum(tensors: dict[str, np.ndarray]) -> np.ndarray:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return np.frombuffer(digest.digest(), dtype=np.uint8)

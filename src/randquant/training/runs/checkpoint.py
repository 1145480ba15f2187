"""Checkpoints: where a run stands, as bytes with a checksum."""

from __future__ import annotations

from pathlib import Path

from randquant._internal import validate
from randquant._internal.serialization import pack_arrays, unpack_arrays
from randquant.training.algorithm import State
from randquant.training.optimizer import from_tensors, to_tensors


def to_bytes(state: State, identity: str) -> bytes:
    """Return the state of a run with that identity."""
    arrays, text = to_tensors(state.optimizer)
    own = {"parameters": state.parameters, "participations": state.participations}
    record = {"identity": identity, "round": state.round, "optimizer": text}
    return pack_arrays(record, own | arrays)


def from_bytes(content: bytes, identity: str, path: Path) -> State:
    """Return the state of the run with that identity; `path` is where it was, for messages.

    Raises:
        ValueError: the content is damaged, or of another run.
    """
    try:
        record, arrays = unpack_arrays(content)
        made_with, text = record["identity"], record["optimizer"]
        number = validate.whole("round", record["round"], low=0)
        parameters, participations = arrays["parameters"], arrays["participations"]
        optimizer = from_tensors(arrays, text)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"Expected a checkpoint in {path}, got a damaged one: {error}") from None
    if made_with != identity:
        raise ValueError(
            f"Expected the configuration that the checkpoint in {path} was made with, got another: "
            "its rounds would not have the guarantee that is printed. Restore its run or begin a "
            "new one."
        )
    return State(number, parameters, participations, optimizer)

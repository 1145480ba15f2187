"""What a run was begun with: model, loss and data, so that no other can take their place.

Only public facts are hashed as they are. Hashes of data are keyed with the run's key: from a hash
of its own, guesses of a client's data could be checked.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch

from randquant._internal import serialization
from randquant._internal.files import read_own
from randquant._internal.serialization import from_json, write_atomic
from randquant.channels.keys import Key
from randquant.local_training.copies import described, tensors
from randquant.local_training.examples import Examples, StoredExamples
from randquant.local_training.problem import Problem, without_addresses
from randquant.training.config import TrainConfig
from randquant.training.runs.folder import BINDING, SECRET
from randquant.training.runs.log import RESTORE


@dataclass(frozen=True, slots=True)
class Binding:
    """Digests of what a run is about, in hexadecimal.

    Attributes:
        model: names, shapes and initial weights of the model, which of them are trained, and the
            public examples for running statistics. A run that goes on has its own first weights of
            what is trained, whatever it is given.
        loss: the name of the loss, with the settings that its repr shows.
        clients: names, sizes and data of all clients; of data that is read from elsewhere during
            training, names and sizes.
        test: the test data.
    """

    model: str
    loss: str
    clients: str
    test: str


_NAMED = {
    "model": "model, frozen weights and trained parts",
    "loss": "loss",
    "clients": "clients' data",
    "test": "test data",
}


def bind(problem: Problem, key: Key) -> Binding:
    """The binding of a run with this key to its problem."""
    secret = key.fold_in("binding").words(4).tobytes()

    def digest(*parts: object) -> str:
        found = hmac.new(secret, digestmod="sha256")
        for part in parts:
            content = part if isinstance(part, memoryview) else memoryview(repr(part).encode())
            found.update(len(content).to_bytes(8, "big"))
            found.update(content)
        return found.hexdigest()

    clients = problem.clients
    tensors = [
        part
        for name, tensor in problem.model.state_dict().items()
        for part in (name, str(tensor.dtype), tuple(tensor.shape), _content(tensor))
    ]
    loss = problem.loss
    name = getattr(loss, "__qualname__", None) or without_addresses(loss)
    return Binding(
        digest(problem.parts, problem.buffers, *tensors, *_data(problem.statistics)),
        digest(getattr(loss, "__module__", ""), name),
        digest(clients.names, *_data(clients.table), *(_bytes(rows) for rows in clients.places)),
        digest(*_data(problem.test)),
    )


def write(folder: Path, binding: Binding) -> None:
    """Write the binding of a new run."""
    serialization.write(folder / BINDING, binding)


def check(folder: Path, binding: Binding) -> None:
    """Refuse another problem than that of the run in a folder.

    Raises:
        ValueError: there is none, or it has another model, loss, or data; the error says which.
    """
    try:
        begun = from_json(Binding, serialization.read(folder / BINDING, RESTORE))
    except FileNotFoundError:
        raise ValueError(
            f"Expected {folder / BINDING}, what the run began with, found none. {RESTORE}"
        ) from None
    for field in fields(Binding):
        if getattr(begun, field.name) != getattr(binding, field.name):
            drawn = " (torch.manual_seed before it is built draws the same weights)"
            raise ValueError(
                f"Expected the {_NAMED[field.name]} that the run in {folder} began with, got "
                f"another: give the same again{drawn * (field.name == 'model')}, or choose another "
                "folder for a new run."
            )


def _data(examples: Examples | None) -> list[object]:
    if not isinstance(examples, StoredExamples):
        return [None if examples is None else len(examples)]
    inputs = tensors(examples.features)
    shapes = described(examples.features, lambda tensor: str(tuple(tensor.shape)))
    return [*map(_content, inputs), _content(examples.targets), shapes]


def _content(tensor: torch.Tensor) -> memoryview:
    return _bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")


# The key of a run: of a simulation seed, or secret and kept in the run's folder only.
#
# Whoever knows the key can compute the noise of every client, and subtract it. A secret key is in
# the file `key`, which only the user can read, and in no other file, report or repr.


class Secret:
    """32 secret bytes from the operating system; its repr does not show them.

    Example:
        >>> Secret.fresh()
        Secret(<32 bytes>)
    """

    __slots__ = ("_bytes",)

    def __init__(self, content: bytes) -> None:
        if len(content) != 32:
            raise ValueError(f"Expected 32 secret bytes, got {len(content)}.")
        self._bytes = content

    @classmethod
    def fresh(cls) -> Secret:
        """New bytes from the operating system."""
        return cls(os.urandom(32))

    @property
    def key(self) -> Key:
        """The key; a run that is resumed encodes the same rounds again with it."""
        return Key(self._bytes)

    def write(self, folder: Path) -> None:
        """Write it to a run's folder; only the user can read the file, which survives a power cut.

        Raises:
            OSError: it cannot be written; the error names the file.
        """
        write_atomic(folder / SECRET, self._bytes.hex().encode() + b"\n", private=True)

    def __repr__(self) -> str:
        return "Secret(<32 bytes>)"

    def __reduce__(self) -> str:
        raise TypeError("Expected a secret to stay in its process: it cannot be pickled.")


def read(folder: Path) -> Secret:
    """Return the secret of the run in a folder.

    Raises:
        ValueError: there is none, or the file is damaged.
        OSError: it cannot be read, or is a link.
    """
    path = folder / SECRET
    advice = "restore it from a copy, or begin a new run"
    try:
        return Secret(bytes.fromhex(read_own(path).decode("ascii").strip()))
    except FileNotFoundError:
        raise ValueError(
            f"Expected the run's secret key in {path}, found none: {advice}."
        ) from None
    except ValueError:  # what the file holds must not enter the message
        raise ValueError(f"Expected 32 secret bytes in {path}, got others: {advice}.") from None


def key_of(config: TrainConfig, folder: Path) -> Key:
    """The key of a run: of its simulation seed, or the secret one in its folder."""
    return read(folder).key if config.seed is None else Key.from_seed(config.seed)


def commitment(config: TrainConfig, key: Key) -> str:
    """What binds a run to its secret key without revealing it; empty for a simulation seed."""
    return key.fold_in("commitment").words(2).tobytes().hex() if config.seed is None else ""

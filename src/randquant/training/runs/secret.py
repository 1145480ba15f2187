"""The key of a run: of a simulation seed, or secret and kept in the run's folder only.

Whoever knows the key can compute the noise of every client, and subtract it. A secret key is in
the file `key`, which only the user can read, and in no other file, report or repr.
"""

from __future__ import annotations

import os
from pathlib import Path

from randquant._internal.disk import read_own
from randquant._internal.serialization import write_atomic
from randquant.channels.keys import Key
from randquant.training.config import TrainConfig
from randquant.training.runs.folder import SECRET


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

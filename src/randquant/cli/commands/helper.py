"""`randquant helper`: the identity of a helper of secure sums, and what it has answered."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from randquant._internal import tables
from randquant._internal.disk import flush, opener, sync_folder
from randquant._internal.serialization import naming
from randquant.aggregation.helper.journal import NAME, HelperJournal
from randquant.cli.command import Command, Output


def run(action: Literal["keygen", "status"], path: str, /) -> Output:
    """Make a helper's identity, or show its account.

    Args:
        action: keygen makes an identity; status shows in how many sums clients are.
        path: of the file that keygen writes, or of the folder of a helper.
    """
    return _keygen(Path(path)) if action == "keygen" else _status(Path(path))


def _keygen(path: Path) -> Output:
    """Write a new private key, which only this user can read, and its public half beside it."""
    identity = Ed25519PrivateKey.generate()
    secret = identity.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = identity.public_key().public_bytes_raw().hex()
    beside = path.with_name(path.name + ".pub")
    _write_new(path, secret, 0o600)
    _write_new(beside, (public + "\n").encode(), 0o644)
    result = {"private": str(path), "public": str(beside), "identity": public}
    lines = [
        f"private        {path}  (stays with the helper)",
        f"public         {beside}",
        f"identity       {public}  (goes into each client's own settings)",
    ]
    return Output(result, lines)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that was not there: a key that is replaced is lost to all who rely on it."""
    with naming(path):
        try:
            file = open(path, "xb", opener=functools.partial(opener, mode=mode))  # noqa: SIM115
        except FileExistsError:
            raise FileExistsError(
                f"Expected a new file {path}, got one that is there: choose another name."
            ) from None
        with contextlib.closing(file):
            file.write(data)
            file.flush()
            flush(file.fileno())
        sync_folder(path.parent)


def _status(folder: Path) -> Output:
    """Show how many clients are in how many sums."""
    if not (folder / NAME).exists():
        raise FileNotFoundError(f"Expected a helper's folder {folder}, got none with {NAME}.")
    sums = HelperJournal(folder).sums()
    counted = sorted(Counter(sums.values()).items())
    rows = [[str(count), f"{clients:,}"] for count, clients in counted]
    result = {
        "clients": len(sums),
        "most_sums": max(sums.values(), default=0),
        "by_sums": {str(count): clients for count, clients in counted},
    }
    return Output(result, tables.text(["sums", "clients in so many"], rows))


COMMAND = Command(run, example="randquant helper keygen helper.key")

"""`randquant helper`: a helper of secure sums: its identity, its service, its record of sums."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import math
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from randquant._internal import formatting, imports
from randquant._internal.files import flush, naming, opener, sync_folder
from randquant.cli.options import Command, Output, flag
from randquant.privacy.guarantee import DEFAULT_DELTA, Neighboring
from randquant.secure_sums.helper.helper import JOURNAL_NAME, Helper, HelperJournal, HelperLimits

DEFAULT_LIMITS = HelperLimits()


def run(
    action: Literal["keygen", "certificates", "serve", "status"],
    path: str,
    /,
    key: str | None = None,
    host: str = "localhost",
    listen: str = "0.0.0.0:9443",
    authority: str | None = None,
    certificate: str | None = None,
    private_key: str | None = None,
    directory: str | None = None,
    least: int = DEFAULT_LIMITS.least,
    most_sums: int | None = DEFAULT_LIMITS.most_sums,
    epsilon: float = math.inf,
    delta: float = DEFAULT_DELTA,
    examples: int | None = None,
    neighboring: Neighboring = "replace_one",
    clients: int = DEFAULT_LIMITS.clients,
    coordinates: int = DEFAULT_LIMITS.coordinates,
    masks: int = DEFAULT_LIMITS.masks,
    least_noise: float = DEFAULT_LIMITS.least_noise,
    workers: int = 2,
    seconds: float = 120.0,
    request_bytes: int = 2**27,
) -> Output:
    """Make a helper's identity and TLS files, answer servers, or show what was answered.

    Args:
        action: keygen makes an identity; certificates makes TLS files for a trial, of an authority
            whose key is thrown away; serve answers servers over mutual TLS until it is stopped;
            status shows in how many sums clients are.
        path: of the file that keygen writes, of the folder for certificates, or of the folder
            where a helper keeps its journal.
        key: for serve: the file that keygen wrote.
        host: for certificates: the name or IP address under which servers reach the helper.
        listen: for serve: host and port.
        authority: for serve: certificate in PEM of the authority that signed the servers'
            certificates.
        certificate: for serve: this helper's certificate in PEM.
        private_key: for serve: the certificate's private key in PEM.
        directory: for serve: JSON file of clients' public identities, by number; seeds without
            their signatures are left out.
        least: for serve: fewest clients in a sum, whatever a server asks for.
        most_sums: for serve: in how many sums a client may be.
        epsilon: for serve: limit of each client's epsilon, by the offers that servers bring; inf
            only checks each offer.
        delta: for serve: of that limit.
        examples: for serve: the public number by which clients divide their sums of clipped
            gradients, if epsilon is of one example (patient).
        neighboring: for serve: of that limit: replace_one (another update) or zero_out (no update).
        clients: for serve: most clients in a sum.
        coordinates: for serve: most coordinates of a sum.
        masks: for serve: most clients times coordinates of a sum.
        least_noise: for serve: smallest variance of the noise that a sum must ask this helper to
            add, in squared steps of the codes; 0 answers sums without noise too.
        workers: for serve: requests that are computed at a time; half of them of one server, known
            by its TLS certificate.
        seconds: for serve: most seconds in which a request must arrive, again for its answer to be
            computed, and again for the server to read it.
        request_bytes: for serve: most bytes of a request, which is held in memory.
    """
    _check_options(action, locals())
    if action == "keygen":
        return _keygen(Path(path))
    if action == "certificates":
        return _certificates(Path(path), host)
    if action == "status":
        return _status(Path(path))
    files = {"authority": authority, "certificate": certificate, "private-key": private_key}
    missing = [name for name, file in {"key": key, **files}.items() if file is None]
    if key is None or missing:
        raise ValueError(f"Expected --{missing[0]} FILE with serve; it is missing.")
    with imports.needed("the helper's service", "flower"):
        from randquant.rounds.helper_service import TLS, ServiceLimits, configured_helper, service
    limits = ServiceLimits(workers=workers, seconds=seconds, request_bytes=request_bytes)
    helper = configured_helper(
        Path(path), Path(key), None if directory is None else Path(directory), epsilon=epsilon,
        delta=delta, examples=examples, neighboring=neighboring, least=least, most_sums=most_sums,
        clients=clients, coordinates=coordinates, masks=masks, least_noise=least_noise,
    )  # fmt: skip
    server, port = service(helper, listen, TLS(*map(str, files.values())), limits)
    # Standard output is for the result alone, which with --json is one object.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    stopped = threading.Event()
    # Not the default handlers, which would end the process in the middle of a sum.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    # Only now: a signal between the start and its handler would end the process at once.
    server.start()
    logging.getLogger(__name__).info(
        "%s listens on port %d", _helper_and_journal(helper, path), port
    )
    stopped.wait()
    server.stop(grace=5).wait()  # seconds for requests in progress to finish
    return _status(Path(path))


def _helper_and_journal(helper: Helper, folder: str) -> str:
    # A relative name, from another working folder, is that of a new journal, in which no client has
    # answered yet: limits would begin again, and the operator should see it.
    journal = f"journal {Path(folder).absolute()}, of {len(helper.sums)} clients"
    return f"helper {helper.identity.hex()} ({journal})"


def _check_options(action: str, options: Mapping[str, object]) -> None:
    # An option without effect would be taken for a limit that holds.
    for name, parameter in inspect.signature(run).parameters.items():
        reader = "certificates" if name == "host" else "serve"
        is_option = parameter.kind is not parameter.POSITIONAL_ONLY
        if is_option and action != reader and options[name] != parameter.default:
            raise ValueError(
                f"Expected no {flag(name)} with {action}, got {options[name]}: it is for {reader}."
            )
    for name, unset in {"delta": DEFAULT_DELTA, "neighboring": "replace_one"}.items():
        if options["epsilon"] == math.inf and options[name] != unset:
            raise ValueError(
                f"Expected --epsilon with --{name}, which is that limit's, got --{name} "
                f"{options[name]} alone: it would limit nothing."
            )


def _keygen(path: Path) -> Output:
    identity = Ed25519PrivateKey.generate()
    secret = identity.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = identity.public_key().public_bytes_raw().hex()
    public_path = path.with_name(path.name + ".pub")
    # Both are checked before the first is written, so no private key is left without its public
    # half. `lexists`: a broken link is a taken name too.
    for file in (path, public_path):
        if os.path.lexists(file):
            raise _exists(file)
    # Modes are set as the files are created: a moment later another user may have read the key.
    _write_new(path, secret, 0o600)
    _write_new(public_path, (public + "\n").encode(), 0o644)
    result = {"private": str(path), "public": str(public_path), "identity": public}
    lines = [
        f"private        {path}  (stays with the helper)",
        f"public         {public_path}",
        f"identity       {public}  (goes into each client's own settings)",
    ]
    return Output(result, lines)


def _certificates(folder: Path, host: str) -> Output:
    with imports.needed("the helper's service", "flower"):
        from randquant.rounds.helper_service import write_certificates
    helper, server = write_certificates(folder, host)
    result = {"host": host, "helper": dataclasses.asdict(helper),
              "server": dataclasses.asdict(server)}  # fmt: skip
    lines = [
        f"helper         randquant helper serve JOURNAL --key KEY --authority {helper.authority} "
        f"--certificate {helper.certificate} --private-key {helper.private_key}",
        f"server         WithHelper(RemoteHelper('{host}:9443', TLS({server.authority!r}, "
        f"{server.certificate!r}, {server.private_key!r})))",
        "For a trial: anyone with the server's files is taken for the server.",
    ]
    return Output(result, lines)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    # Never over an existing file: a helper whose key is replaced is unknown to all its clients.
    with naming(path):
        try:
            file = open(path, "xb", opener=functools.partial(opener, mode=mode))  # noqa: SIM115
        except FileExistsError:
            raise _exists(path) from None
        with contextlib.closing(file):
            file.write(data)
            file.flush()
            flush(file.fileno())
        sync_folder(path.parent)


def _exists(path: Path) -> FileExistsError:
    return FileExistsError(f"Expected a new file, but {path} exists: choose another name.")


def _status(folder: Path) -> Output:
    # Opening a journal would create it: a mistyped folder must not look like a helper without sums.
    if not (folder / JOURNAL_NAME).exists():
        raise FileNotFoundError(f"Expected a helper's folder, got {folder} without {JOURNAL_NAME}.")
    sums = HelperJournal(folder).sums()
    histogram = sorted(Counter(sums.values()).items())
    rows = [[str(count), f"{clients:,}"] for count, clients in histogram]
    result = {
        "clients": len(sums),
        "most_sums": max(sums.values(), default=0),
        "by_sums": {str(count): clients for count, clients in histogram},
    }
    return Output(result, formatting.text(["sums per client", "clients"], rows))


COMMANDS = {
    "helper": Command(run, example="randquant helper keygen helper.key"),
}

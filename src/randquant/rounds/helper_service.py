"""A helper of secure sums as a service: two calls over mutual TLS, by gRPC.

`Key` returns the helper's key as JSON, `Answer` takes a request and returns the sum of masks.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from randquant._internal import validate
from randquant._internal.files import make_folder
from randquant._internal.serialization import write_atomic
from randquant.rounds.accountant import RoundEvent, RunAccountant
from randquant.rounds.foreign import logged
from randquant.rounds.ledger import OWN
from randquant.rounds.limits import identity as read_identity
from randquant.rounds.offer import Offer
from randquant.secure_sums.helper import joint_seed
from randquant.secure_sums.helper.helper import Affords, Check, Helper, HelperLimits
from randquant.secure_sums.helper.message import HelperTerms
from randquant.secure_sums.helper.sealing import HelperKey
from randquant.secure_sums.secagg.terms import ProtocolError

SERVICE = "randquant.Helper"
KEY, ANSWER = f"/{SERVICE}/Key", f"/{SERVICE}/Answer"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
LISTENING = [
    ("grpc.so_reuseport", 0),  # two helpers on one port would share its calls
    ("grpc.server_handshake_timeout_ms", 3000),  # strangers must not keep connections open
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 8),
]
CALLS, CALLS_OF_ONE = 32, 4
"""Most calls at a time, and of one certificate: all but some of them wait."""
PAUSE = 0.2
"""Seconds after which a waiting call looks whether its caller is still there."""

AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
TRIES = 3
"""Calls before a helper counts as unreachable: the same request again has the same answer."""
STARTING = 30.0
"""Seconds, at most, to wait for a helper that is starting, before clients are asked."""
ASKING_WHY = 3.0
"""Seconds to ask why there is no connection: a call that waits for one is not told."""
UNTRUSTED = ("verification", "handshake")
"""Words of gRPC where a helper is another than is expected."""


@dataclass(frozen=True)  # without slots: NVFlare reads its jobs' values by __dict__
class TLS:
    """Files in PEM that both sides of a connection need.

    Attributes:
        authority: the certificate of who signed the other side's.
        certificate: this side's.
        private_key: of that certificate.
    """

    authority: str
    certificate: str
    private_key: str

    def read(self) -> tuple[bytes, bytes, bytes]:
        """The three files' bytes, in this order; OSError if one cannot be read."""
        files = (self.authority, self.certificate, self.private_key)
        authority, certificate, private = (Path(each).read_bytes() for each in files)
        return authority, certificate, private


class RemoteHelper:
    """A helper that is reached over the network, by a server that it knows.

    Args:
        address: `HOST:PORT`, as in the helper's certificate.
        tls: the server's files. A connection without TLS is refused: who reads what the helper
            answers, and what clients send, reads clients' codes.
        timeout: seconds for one call.

    Raises:
        OSError: a file cannot be read.
    """

    def __init__(self, address: str, tls: TLS, timeout: float = 120.0) -> None:
        authority, certificate, private = tls.read()
        credentials = grpc.ssl_channel_credentials(authority, private, certificate)
        self.address, self.tls = address, tls
        self.timeout = validate.real("timeout", timeout, above=0)
        self._channel = grpc.secure_channel(address, credentials, UNLIMITED)

    @property
    def key(self) -> HelperKey:
        """The key that clients seal to now.

        Raises:
            OSError: the helper does not answer.
            ProtocolError: it answers something else.
        """
        try:
            found = self._call(KEY, b"", min(self.timeout, STARTING))
            return HelperKey.from_record(json.loads(found))
        except (ValueError, RecursionError) as error:
            raise ProtocolError("Expected a helper's key, got something else.") from error

    def answer(self, request: bytes) -> bytes:
        """The sum of masks for a request of `HelperSum`.

        Raises:
            ProtocolError: the helper refuses; the message is its own.
            OSError: it does not answer.
        """
        return self._call(ANSWER, request, self.timeout, TRIES)

    def _call(self, name: str, request: bytes, timeout: float, tries: int = 1) -> bytes:
        call = self._channel.unary_unary(name)
        for left in reversed(range(tries)):
            try:
                return call(request, timeout=timeout, wait_for_ready=True)
            except grpc.RpcError as error:
                code, details = error.code(), error.details()  # type: ignore[attr-defined]
                if code == grpc.StatusCode.INVALID_ARGUMENT:
                    raise ProtocolError(f"The helper: {logged(details)}") from None
                if not left or code not in AGAIN:
                    why = self._why() if code in AGAIN else ""
                    raise OSError(f"{self.address} ({code.name.lower()}{why})") from None
        raise AssertionError  # the last try returns or raises

    def _why(self) -> str:
        """Why there is no connection: gRPC does not say it where a call has waited for one."""
        try:
            self._channel.unary_unary(KEY)(b"", timeout=ASKING_WHY)
        except grpc.RpcError as error:
            _, _, last = str(error.details()).partition("last error: ")  # type: ignore[attr-defined]
            wrong = any(words in last.lower() for words in UNTRUSTED)
            who = ": expected a helper with a certificate of this name, signed by the authority"
            return f"{who * wrong}: {logged(last)}" if last else ""
        return ""


@dataclass(frozen=True)
class ServiceLimits:
    """What a service gives to all servers together; `HelperLimits` is about single sums.

    Args:
        workers: requests that are answered at a time; half of them, or one, of one certificate.
        seconds: for one answer: then the work ends, and the server is told so.
        request_bytes: of a request; 100,000 clients have 124 MB.

    Raises:
        TypeError, ValueError: a number is out of bounds.
    """

    workers: int = 2
    seconds: float = 120.0
    request_bytes: int = 2**27

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.whole("workers", self.workers, low=1, high=CALLS // 2)
        validate.real("seconds", self.seconds, above=0)
        validate.whole("request_bytes", self.request_bytes, low=2**10, high=2**31 - 1)


def service(
    helper: Helper, address: str, tls: TLS, limits: ServiceLimits | None = None
) -> tuple[grpc.Server, int]:
    """A server that is ready to be started, and its port.

    Args:
        helper: answers.
        address: where to listen, `HOST:PORT`; port 0 for a free one.
        tls: the helper's files. Whoever has a certificate of this authority is heard as a server:
            it should sign servers only, and no site or client.
        limits: what servers get.

    Raises:
        OSError: a file cannot be read, or nobody can listen there.
    """
    limits = limits or ServiceLimits()
    authority, certificate, private = tls.read()
    credentials = grpc.ssl_server_credentials([(private, certificate)], authority, True)
    most = ("grpc.max_receive_message_length", limits.request_bytes)
    server = grpc.server(
        ThreadPoolExecutor(CALLS), options=[*LISTENING, most], maximum_concurrent_rpcs=CALLS
    )

    def key(request: bytes, context: grpc.ServicerContext) -> bytes:
        return json.dumps(helper.key.to_record()).encode()

    methods = {"Key": _handler(key), "Answer": _handler(_answering(helper, limits))}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"Expected an address to listen on, got {address}: {error}") from None
    return server, port


def _handler(call: Callable[[bytes, grpc.ServicerContext], bytes]) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(call)


def _answering(
    helper: Helper, limits: ServiceLimits
) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    log, workers = getLogger(__name__), _Workers(limits.workers)

    def answered(request: bytes, context: grpc.ServicerContext) -> bytes:
        if request.startswith(joint_seed.REQUEST_MAGIC):  # a signature, at once
            return helper.answer(request)
        who = repr(context.auth_context().get("x509_pem_cert"))
        with workers.one(who, lambda: _check_present(context)):
            return helper.answer(request, _watching(context, limits.seconds))

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            message = answered(request, context)
        except ProtocolError as error:
            log.warning("refused: %s", error)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception:  # it may name files of this machine
            log.exception("failed")
            context.abort(grpc.StatusCode.UNAVAILABLE, "The helper's log says why.")
        else:
            log.info("answered a request of %d bytes", len(request))
            return message
        raise AssertionError  # abort raises

    return answer


def _check_present(context: grpc.ServicerContext) -> None:
    if not context.is_active():
        raise ProtocolError("Expected a server that waits for its answer, but it has gone.")


def _watching(context: grpc.ServicerContext, seconds: float) -> Check:
    end = time.monotonic() + seconds

    def check() -> None:
        _check_present(context)
        if time.monotonic() > end:
            raise ProtocolError(
                f"Expected a sum that takes {seconds:g} s at most, this helper's limit, got a "
                "longer one: ask for fewer clients or coordinates."
            )

    return check


@dataclass
class _Share:
    """Of one certificate: its calls that are here, and what it may have of the workers."""

    workers: threading.Semaphore
    calls: int = 0


class _Workers:
    """Who is answered at a time: nobody has all workers, however often it calls."""

    def __init__(self, workers: int) -> None:
        self._of_one = max(1, workers // 2)
        self._all, self._lock = threading.Semaphore(workers), threading.Lock()
        self._shares: dict[str, _Share] = {}

    @contextlib.contextmanager
    def one(self, who: str, check: Check) -> Iterator[None]:
        """Wait for a worker; ProtocolError if too many calls of this one wait already."""
        with self._lock:
            share = self._shares.setdefault(who, _Share(threading.Semaphore(self._of_one)))
            if share.calls == CALLS_OF_ONE:
                raise ProtocolError(
                    f"Expected {CALLS_OF_ONE} requests of one certificate at a time, got a "
                    f"{CALLS_OF_ONE + 1}th: wait for their answers."
                )
            share.calls += 1
        try:
            with _held(share.workers, check), _held(self._all, check):
                yield
        finally:
            with self._lock:
                share.calls -= 1
                if not share.calls:
                    del self._shares[who]


@contextlib.contextmanager
def _held(semaphore: threading.Semaphore, check: Check) -> Iterator[None]:
    while not semaphore.acquire(timeout=PAUSE):
        check()
    try:
        yield
    finally:
        semaphore.release()


# A helper's own limit of each client's epsilon, by the offers that servers bring.

CERTIFICATE_BYTES = 256
"""By how many a certificate may differ that another machine has computed."""


def within(epsilon: float, delta: float = 1e-5, examples: int | None = None) -> Affords:
    """What a helper allows with `HelperLimits(affords=within(8.0))`.

    Args:
        epsilon: limit of a client's epsilon over all sums that this helper has answered; infinity
            only checks each offer. All sums of a journal must have been answered so.
        delta: in (0, 1).
        examples: the limit is for one of so many examples of a client, as the operator says and not
            as a server's offer does; None for all data of a client. It holds where clients clip
            each example's gradient at the offer's clip norm or less, which a helper cannot see and
            a site's `QuantizeFilter(clip_norm=)` sees to.

    Returns:
        From the terms of a sum, and how often a client is in sums of each offer with it, to whether
        it may be. An offer that needs more clients than the terms guarantee is refused, as is one
        that is not as certified, or not in the text that this package writes.

    Raises:
        TypeError, ValueError: an argument is out of bounds.
    """
    if epsilon != math.inf:
        epsilon = validate.real("epsilon", epsilon, above=0)
    delta = validate.real("delta", delta, above=0, below=1)
    if examples is not None:
        examples = validate.whole("examples", examples, low=1)

    def affords(terms: HelperTerms, sums: Mapping[str, int], check: Check) -> bool:
        account = RunAccountant(delta)
        for text, count in sums.items():
            check()
            now = hashlib.sha256(text.encode()).digest() == terms.offer
            try:
                offer = Offer.from_text(text)
                if now:
                    _check_written(offer, text)
                offer = offer.for_unit(examples)
            except ValueError as error:  # also where there is no bound for one example
                if now:
                    raise ProtocolError(str(error)) from None
                return False
            if now and (offer.mechanism.cohort > terms.least or offer.size != terms.dimension):
                return False
            account.compose(RoundEvent(offer, frozenset({OWN})), count)
        check()
        return epsilon == math.inf or account.get_epsilon(delta) <= epsilon

    return affords


def _check_written(offer: Offer, text: str) -> None:
    """Raise ProtocolError unless a text is as this package writes it: the journal keeps it."""
    own, got = json.loads(offer.to_text()), json.loads(text)
    same = json.dumps(got, sort_keys=True) == text
    same = same and abs(len(text) - len(offer.to_text())) <= CERTIFICATE_BYTES
    for record in (own, got):
        record.get("channel", {}).pop("certificate", None)
    if not same or json.dumps(own, sort_keys=True) != json.dumps(got, sort_keys=True):
        raise ProtocolError(
            "Expected an offer in the text that this package writes, got another with "
            f"{len(text)} characters: send Offer.to_text()."
        )


def helper_of(
    folder: Path,
    key: Path,
    directory: Path | None = None,
    *,
    epsilon: float = math.inf,
    delta: float = 1e-5,
    examples: int | None = None,
    **limits: Any,
) -> Helper:
    """Return the helper that its operator's files and limits describe.

    Args:
        folder: of its journal.
        key: file of its identity in PEM, as `randquant helper keygen` writes it.
        directory: JSON file of clients' public identities, by number.
        epsilon, delta, examples: of `within`.
        limits: the other fields of `HelperLimits`.

    Raises:
        DamagedFile, OSError: a file cannot be used.
        TypeError, ValueError: a limit is unknown or out of bounds.
    """
    files = {"randquant-identity": key, "randquant-directory": directory}
    identity, public = read_identity({n: file for n, file in files.items() if file is not None})
    assert identity is not None
    allowed = HelperLimits(**limits, affords=within(epsilon, delta, examples))
    make_folder(folder)
    return Helper(folder, identity, allowed, public)


# Files of TLS for a trial.

CERTIFICATE_DAYS = 30
"""Days for which a trial's certificates are valid: a deployment has those of its own authority."""


def write_certificates(folder: Path, host: str = "localhost") -> tuple[TLS, TLS]:
    """Write certificates for a helper and one server, by an authority whose key is thrown away.

    So nobody else can be signed later: to add a server, write all files again.

    Args:
        folder: must not hold such files yet.
        host: name or IP address under which servers reach the helper.

    Returns:
        The files of the helper, and those of the server.

    Raises:
        FileExistsError: a file is there; none was written.
        OSError: a file cannot be written.
    """
    names = "authority.pem", *(f"{who}{end}" for who in PARTIES for end in (".pem", "-tls.key"))
    for name in names:
        if (folder / name).exists():
            raise FileExistsError(
                f"Expected a folder without certificates, got {folder / name}: choose another."
            )
    make_folder(folder)
    root_key = generate_private_key(SECP256R1())
    root = _certificate("authority", host, root_key, "authority", root_key, authority=True)
    write_atomic(folder / "authority.pem", root.public_bytes(Encoding.PEM))
    for who in PARTIES:
        key = generate_private_key(SECP256R1())
        signed = _certificate(who, host, key, "authority", root_key, authority=False)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_atomic(folder / f"{who}-tls.key", private, private=True)
        write_atomic(folder / f"{who}.pem", signed.public_bytes(Encoding.PEM))
    helper, server = (
        TLS(*(str(folder / name) for name in ("authority.pem", f"{who}.pem", f"{who}-tls.key")))
        for who in PARTIES
    )
    return helper, server


PARTIES = ("helper", "server")


def _certificate(
    subject: str,
    host: str,
    key: EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    try:
        reached: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        reached = x509.DNSName(host)
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.SubjectAlternativeName([reached]), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .sign(issuer_key, SHA256())
    )

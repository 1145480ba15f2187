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
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from randquant._internal import validate
from randquant._internal.files import make_folder, write_atomic
from randquant.channels.keys import Key
from randquant.mechanisms.noise import DiscreteGaussian
from randquant.privacy.guarantee import DEFAULT_DELTA, NEIGHBORINGS, Neighboring
from randquant.rounds.accountant import THIS_CLIENT, RoundEvent, RunAccountant
from randquant.rounds.limits import identity as read_identity
from randquant.rounds.offer import Offer
from randquant.rounds.protocol import logged
from randquant.secure_sums.helper.helper import Affords, Check, Helper, HelperLimits
from randquant.secure_sums.helper.message import JOINT_SEED_MAGIC, HelperKey, HelperTerms
from randquant.secure_sums.terms import ProtocolError

SERVICE = "randquant.Helper"
KEY_METHOD_PATH, ANSWER_METHOD_PATH = f"/{SERVICE}/Key", f"/{SERVICE}/Answer"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
HANDSHAKE_TIMEOUT_MILLISECONDS = 3000
"""Longest TLS handshake: strangers must not keep connections open. Half of it may be too short on
slow links; with twice of it they keep twice as many."""
LISTENING = [
    ("grpc.so_reuseport", 0),  # two helpers on one port would share its calls
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MILLISECONDS),
    ("grpc.max_send_message_length", -1),  # a sum of any dimension: the requests are limited
    ("grpc.max_concurrent_streams", 8),  # of one connection; one caller gets fewer
]
MAX_CALLS, MAX_CALLS_PER_CALLER = 32, 4
"""Most calls at a time, those that arrive, wait or are answered included: of all callers, and of
one, known by its TLS certificate. Each holds a thread and its request or answer in memory: twice as
many cost twice as much; with half as many a server that tries again while its first call still
waits may be refused.
How many are computed at a time is the operator's setting, `ServiceLimits.workers`."""
CALLER_CHECK_SECONDS = 0.2
"""Seconds between two checks that the caller of a waiting call is still connected. With half, each
waiting call wakes twice as often; with twice, the call of one that left keeps its place longer."""

RETRIED_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
MAX_TRIES = 3
"""Calls before a helper counts as unreachable. The same request again has the same answer, so that
repeating is safe; more tries only wait longer for a helper that is gone."""
START_TIMEOUT_SECONDS = 30.0
"""Longest wait for a helper that is starting, before clients are asked. With half, a helper on a
slow machine may be missed; with twice, a wrong address is reported later."""
DIAGNOSIS_TIMEOUT_SECONDS = 3.0
"""Seconds of a call that only asks why there is no connection. With half, a slow network may give
no reason; with twice, the error comes later."""
TLS_ERROR_WORDS = ("verification", "handshake")
"""Words in gRPC's message if the helper's certificate is not the expected one."""


@dataclass(frozen=True)  # without slots: NVFlare reads its jobs' values by __dict__
class TLS:
    """PEM files of one side of a TLS connection.

    Attributes:
        authority: certificate of the authority that signed the other side's certificate.
        certificate: of this side.
        private_key: of that certificate.
    """

    authority: str
    certificate: str
    private_key: str

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the three files' bytes, in this order; OSError if one cannot be read."""
        files = (self.authority, self.certificate, self.private_key)
        authority, certificate, private = (Path(file).read_bytes() for file in files)
        return authority, certificate, private


class RemoteHelper:
    """A server's connection to a helper, by gRPC over mutual TLS.

    Args:
        address: `HOST:PORT`, as in the helper's certificate.
        tls: the server's files. There is no connection without TLS: an eavesdropper on
            the helper's answers and the clients' messages would learn what the server learns.
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
            record = self._call(KEY_METHOD_PATH, b"", min(self.timeout, START_TIMEOUT_SECONDS))
            return HelperKey.from_record(json.loads(record))
        except (ValueError, RecursionError) as error:
            # The bytes are not shown: they are a stranger's.
            raise ProtocolError(
                "Expected a helper's key as JSON, got bytes that are not."
            ) from error

    def answer(self, request: bytes) -> bytes:
        """Return the sum of masks for a request of `HelperSum`.

        Raises:
            ProtocolError: the helper refuses, with its reason.
            OSError: it does not answer.
        """
        return self._call(ANSWER_METHOD_PATH, request, self.timeout, MAX_TRIES)

    def _call(self, name: str, request: bytes, timeout: float, tries: int = 1) -> bytes:
        call = self._channel.unary_unary(name)
        for left in reversed(range(tries)):
            try:
                # It waits for a helper that is starting: else the first refused connection ends it.
                return call(request, timeout=timeout, wait_for_ready=True)
            except grpc.RpcError as error:
                code, details = error.code(), error.details()  # type: ignore[attr-defined]
                if code == grpc.StatusCode.INVALID_ARGUMENT:
                    raise ProtocolError(f"The helper: {logged(details)}") from None
                if not left or code not in RETRIED_CODES:
                    why = self._why() if code in RETRIED_CODES else ""
                    raise OSError(f"{self.address} ({code.name.lower()}{why})") from None
        raise AssertionError  # the last try returns or raises

    def _why(self) -> str:
        # gRPC gives a reason only to a call that does not wait for the connection.
        try:
            self._channel.unary_unary(KEY_METHOD_PATH)(b"", timeout=DIAGNOSIS_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            _, _, last = str(error.details()).partition("last error: ")  # type: ignore[attr-defined]
            untrusted = any(word in last.lower() for word in TLS_ERROR_WORDS)
            advice = ": expected a helper with a certificate of this name, signed by the authority"
            return f"{advice * untrusted}: {logged(last)}" if last else ""
        return ""


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of a service for all servers together; `HelperLimits` limits single sums.

    Args:
        workers: most requests that are computed at a time: offers certified, masks added up. Half
            of them, or one, for one caller, who is known by its TLS certificate.
        seconds: most seconds in which a request must arrive, again for its answer to be computed,
            and again for the caller to read it. A connection without calls is closed after as many.
        request_bytes: most bytes of a request, against servers that would fill the helper's memory;
            one of 100,000 clients has 124 MB.

    Raises:
        TypeError, ValueError: a number is out of bounds.
    """

    workers: int = 2
    seconds: float = 120.0
    request_bytes: int = 2**27

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.whole("workers", self.workers, low=1, high=MAX_CALLS // 2)
        validate.real("seconds", self.seconds, above=0, high=86_400)
        validate.whole("request_bytes", self.request_bytes, low=2**10, high=2**31 - 1)


def service(
    helper: Helper, address: str, tls: TLS, limits: ServiceLimits | None = None
) -> tuple[grpc.Server, int]:
    """Return a gRPC server that is ready to be started, and its port.

    Args:
        helper: answers the requests.
        address: `HOST:PORT` to listen on; port 0 for a free one.
        tls: the helper's files. Each certificate that this authority signed is accepted as a
            server's: it should sign servers only, and no site or client.
        limits: for all servers; None for the defaults.

    Raises:
        OSError: a file cannot be read, or the address cannot be listened on.
    """
    limits = limits or ServiceLimits()
    authority, certificate, private = tls.read()
    credentials = grpc.ssl_server_credentials([(private, certificate)], authority, True)
    options = [
        *LISTENING,
        ("grpc.max_receive_message_length", limits.request_bytes),
        # Each holds a file, of which a process has some 1,000: connections that are opened and left
        # would keep everybody out. A server that calls again later connects again.
        ("grpc.max_connection_idle_ms", math.ceil(1000 * limits.seconds)),
    ]
    server = grpc.server(
        ThreadPoolExecutor(MAX_CALLS), options=options, maximum_concurrent_rpcs=MAX_CALLS
    )

    def key(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return json.dumps(helper.key.to_record()).encode()  # whatever arrives, and if nothing does

    # A caller sends one message and gets one. Read as a stream, a call is counted before its
    # message is there: else callers who send none would hold all threads.
    methods = {
        "Key": grpc.stream_unary_rpc_method_handler(key),
        "Answer": grpc.stream_stream_rpc_method_handler(_answering(helper, limits)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"Expected an address to listen on, got {address}: {error}") from None
    return server, port


def _answering(
    helper: Helper, limits: ServiceLimits
) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
    log, workers = getLogger(__name__), _Workers(limits.workers)

    def compute(requests: Iterator[bytes], context: grpc.ServicerContext, share: _Share) -> bytes:
        request = _received(requests, context, limits.seconds)
        # One signature needs no worker: a round can begin while sums are made.
        if request.startswith(JOINT_SEED_MAGIC):
            message = helper.answer(request)
        else:
            with workers.worker(share, lambda: _check_present(context)):
                message = helper.answer(request, _watching(context, limits.seconds))
        log.info("answered a request of %d bytes", len(request))
        return message

    def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        # By TLS certificate and not by address: one server can call from many addresses.
        who = repr(context.auth_context().get("x509_pem_cert"))
        try:
            with workers.call(who) as share:
                message = compute(requests, context, share)
                # Yielded, the call counts for its caller until it is sent. Returned, the answers of
                # callers who ask again and again, and read none, would fill the memory.
                with _cancelled_after(limits.seconds, context):
                    yield message
        except ProtocolError as error:
            # Not to be tried again: the same request would be refused again.
            log.warning("refused: %s", error)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception:
            # The error may name files of this machine, so only the log has it.
            log.exception("failed")
            context.abort(grpc.StatusCode.UNAVAILABLE, "The helper's log says why.")

    return answer


@contextlib.contextmanager
def _cancelled_after(seconds: float, context: grpc.ServicerContext) -> Iterator[None]:
    timer = threading.Timer(seconds, context.cancel)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _received(requests: Iterator[bytes], context: grpc.ServicerContext, seconds: float) -> bytes:
    # A caller that died while it was sending would keep its place for ever.
    with _cancelled_after(seconds, context):
        try:
            return next(requests)
        except (StopIteration, grpc.RpcError):
            raise ProtocolError(
                f"Expected a whole request within {seconds:g} s, this helper's limit, got only a "
                "part."
            ) from None


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
                "sum that takes longer: ask for fewer clients or coordinates."
            )

    return check


@dataclass
class _Share:
    """One caller's share of the service: its workers, and how many calls it has now."""

    workers: threading.Semaphore
    calls: int = 0


class _Workers:
    """The workers of a service: no caller gets all of them, however often it calls."""

    def __init__(self, workers: int) -> None:
        # Half of them, so that one server's requests leave the other half to the other servers.
        self._per_caller = max(1, workers // 2)
        self._all, self._lock = threading.Semaphore(workers), threading.Lock()
        self._shares: dict[str, _Share] = {}

    @contextlib.contextmanager
    def call(self, who: str) -> Iterator[_Share]:
        """Count a call of a caller; ProtocolError if it has too many already."""
        with self._lock:
            share = self._shares.setdefault(who, _Share(threading.Semaphore(self._per_caller)))
            if share.calls == MAX_CALLS_PER_CALLER:
                raise ProtocolError(
                    f"Expected {MAX_CALLS_PER_CALLER} requests of one TLS certificate at a time, "
                    f"got a {MAX_CALLS_PER_CALLER + 1}th: wait for their answers."
                )
            share.calls += 1
        try:
            yield share
        finally:
            with self._lock:
                share.calls -= 1
                if not share.calls:  # else the table would grow with every caller ever seen
                    del self._shares[who]

    @contextlib.contextmanager
    def worker(self, share: _Share, check: Check) -> Iterator[None]:
        # Its own share first: a call that waits for it must not keep a worker from others.
        with _acquired(share.workers, check), _acquired(self._all, check):
            yield


@contextlib.contextmanager
def _acquired(semaphore: threading.Semaphore, check: Check) -> Iterator[None]:
    while not semaphore.acquire(timeout=CALLER_CHECK_SECONDS):
        check()
    try:
        yield
    finally:
        semaphore.release()


def draw_noise(variance: float, count: int, key: Key) -> np.ndarray:
    """Draw (count,) integers of the discrete Gaussian law: `Helper(draw_noise=draw_noise)`.

    Raises:
        ValueError: the variance is not one that `DiscreteGaussian` draws.
    """
    return DiscreteGaussian(variance).draw(count, key)


# A helper's limit of each client's epsilon, computed from the offers in the requests.

MAX_LENGTH_DIFFERENCE = 256
"""Largest difference in length of an offer's text if another machine certified its channel. Twice
as much would let a server fill the journal with twice the padding; half as much might refuse
another machine's last digits."""


def within(
    epsilon: float,
    delta: float = DEFAULT_DELTA,
    examples: int | None = None,
    neighboring: Neighboring = "replace_one",
) -> Affords:
    """Return a limit of each client's epsilon for a helper: `HelperLimits(affords=within(8.0))`.

    Args:
        epsilon: limit of a client's epsilon over all sums that this helper has answered; infinity
            only checks each offer. All sums of a journal must have been answered with such a limit.
        delta: in (0, 1).
        examples: the public number by which clients divide their sums of clipped gradients (see
            `ClientLimits`), if the limit protects one example; the operator decides this, not a
            server's offer. None for all data of a client. It holds if clients divide by it, and
            clip each example's gradient to the offer's clip norm or less, which a helper cannot
            check; a site's `QuantizeFilter(clip_norm=)` does.
        neighboring: the relation whose epsilon is limited.

    Returns:
        A function of the terms of a sum and of the number of sums of each offer that a client is
        in, this one included. It returns True if the client may be in this sum. It refuses an offer
        that needs more clients, more noise of the helper or another modulus than the terms
        guarantee, whose certificate is wrong, or whose text this package would not write.

    Raises:
        TypeError, ValueError: an argument is out of bounds.
    """
    if epsilon != math.inf:
        epsilon = validate.real("epsilon", epsilon, above=0)
    delta = validate.real("delta", delta, above=0, below=1)
    if examples is not None:
        examples = validate.whole("examples", examples, low=1)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)

    def affords(terms: HelperTerms, sums: Mapping[str, int], check: Check) -> bool:
        account = RunAccountant(delta, neighboring)
        for text, count in sums.items():
            check()  # certifying an offer may take long, and the caller may leave meanwhile
            is_requested = hashlib.sha256(text.encode()).digest() == terms.offer
            try:
                offer = Offer.from_text(text)
                if is_requested:
                    _check_canonical(offer, text)
                offer = offer.for_unit(examples)
                offer.release(1, neighboring, "aggregate")  # its bits may not hold its noise
            except ValueError as error:  # also if there is no bound for one example
                if is_requested:
                    raise ProtocolError(str(error)) from None
                # An earlier sum of unknown cost: the client cannot be shown to be within the limit.
                return False
            if is_requested and (
                offer.mechanism.cohort > terms.least
                or offer.size != terms.dimension
                or terms.noise_variance < offer.helper_variance
                # theory/additive.md, Proposition 10: proven sums are exact, as wide ones are.
                or (offer.sends_remainders and terms.bits != offer.sum_bits(terms.cohort))
                or (offer.sends_remainders and terms.largest)
            ):
                return False
            account.compose(RoundEvent(offer, frozenset({THIS_CLIENT})), count)
        check()
        return epsilon == math.inf or account.get_epsilon(delta) <= epsilon

    return affords


def _check_canonical(offer: Offer, text: str) -> None:
    # The journal keeps one text for each offer. A server that could write one offer in many ways
    # would fill the disk.
    expected, got = json.loads(offer.to_text()), json.loads(text)
    same = json.dumps(got, sort_keys=True) == text
    same = same and abs(len(text) - len(offer.to_text())) <= MAX_LENGTH_DIFFERENCE
    # Certificates may differ in their last digits; `Offer.from_text` has checked them.
    for record in (expected, got):
        record.get("channel", {}).pop("certificate", None)
    if not same or json.dumps(expected, sort_keys=True) != json.dumps(got, sort_keys=True):
        raise ProtocolError(
            "Expected an offer in the text that this package writes, got a text of "
            f"{len(text)} characters that differs: send Offer.to_text()."
        )


def configured_helper(
    folder: Path,
    key: Path,
    directory: Path | None = None,
    *,
    epsilon: float = math.inf,
    delta: float = DEFAULT_DELTA,
    examples: int | None = None,
    neighboring: Neighboring = "replace_one",
    **limits: Any,
) -> Helper:
    """Return the helper that its operator's files and limits describe.

    Args:
        folder: of its journal.
        key: file of its identity in PEM, as `randquant helper keygen` writes it.
        directory: JSON file of clients' public identities, by number.
        epsilon, delta, examples, neighboring: of `within`.
        limits: the other fields of `HelperLimits`.

    Raises:
        DamagedFile, OSError: a file cannot be used.
        TypeError, ValueError: a limit is unknown or out of bounds.
    """
    files = {"randquant-identity": key, "randquant-directory": directory}
    identity, public = read_identity({n: file for n, file in files.items() if file is not None})
    assert identity is not None  # `key` is not optional
    allowed = HelperLimits(**limits, affords=within(epsilon, delta, examples, neighboring))
    make_folder(folder)
    return Helper(folder, identity, allowed, public, draw_noise=draw_noise)


# TLS files for a trial, from an authority of one use.

CERTIFICATE_DAYS = 30
"""Days for which a trial's certificates are valid, too few for a deployment, which should have an
authority of its own. Half or twice of it serves a trial as well."""


def write_certificates(folder: Path, host: str = "localhost") -> tuple[TLS, TLS]:
    """Write certificates for a helper and one server, by an authority whose key is not kept.

    No other certificate can be signed later: to add a server, write all files again.

    Args:
        folder: must not hold such files yet.
        host: name or IP address under which servers reach the helper.

    Returns:
        The files of the helper, and those of the server.

    Raises:
        FileExistsError: a file is there; none was written.
        OSError: a file cannot be written.
    """
    # Before any is written: certificates of a new authority do not fit those of an old one.
    names = "authority.pem", *(f"{who}{end}" for who in PARTIES for end in (".pem", "-tls.key"))
    for name in names:
        if (folder / name).exists():
            raise FileExistsError(
                f"Expected a folder without certificates, got {folder / name}: choose another."
            )
    make_folder(folder)
    root_key = generate_private_key(SECP256R1())  # not written: nobody can sign more certificates
    root = _certificate("authority", host, root_key, "authority", root_key, authority=True)
    write_atomic(folder / "authority.pem", root.public_bytes(Encoding.PEM))
    for who in PARTIES:
        key = generate_private_key(SECP256R1())
        signed = _certificate(who, host, key, "authority", root_key, authority=False)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_atomic(folder / f"{who}-tls.key", private, private=True)  # for this user only
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
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    today = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The other machine's clock may be late.
        .not_valid_before(today - datetime.timedelta(hours=1))
        .not_valid_after(today + datetime.timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .sign(issuer_key, SHA256())
    )

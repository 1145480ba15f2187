"""A helper of secure sums as a service: two calls over mutual TLS, by gRPC.

`Key` returns the helper's key as JSON, `Answer` takes a request and returns the sum of masks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

import grpc

from randquant._internal import validate
from randquant.integrations.foreign import logged
from randquant.secure_sums.helper.helper import Helper
from randquant.secure_sums.helper.sealing import HelperKey
from randquant.secure_sums.secagg.terms import ProtocolError

SERVICE = "randquant.Helper"
KEY, ANSWER = f"/{SERVICE}/Key", f"/{SERVICE}/Answer"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
"""A request of 100,000 clients has 120 MB."""
LISTENING = [*UNLIMITED, ("grpc.so_reuseport", 0), ("grpc.server_handshake_timeout_ms", 3000)]
"""Two helpers on one port would share its calls; strangers must not keep connections open."""

AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
TRIES = 3
"""Calls before a helper counts as unreachable: the same request again has the same answer."""
STARTING = 30.0
"""Seconds, at most, to wait for a helper that is starting, before clients are asked."""


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
                    raise OSError(f"{self.address} ({code.name.lower()})") from None
        raise AssertionError  # the last try returns or raises


def service(helper: Helper, address: str, tls: TLS) -> tuple[grpc.Server, int]:
    """A server that is ready to be started, and its port.

    Args:
        helper: answers.
        address: where to listen, `HOST:PORT`; port 0 for a free one.
        tls: the helper's files. Whoever has a certificate of this authority is heard as a server:
            it should sign servers only, and no site or client.

    Raises:
        OSError: a file cannot be read, or nobody can listen there.
    """
    authority, certificate, private = tls.read()
    credentials = grpc.ssl_server_credentials([(private, certificate)], authority, True)
    server = grpc.server(ThreadPoolExecutor(2), options=LISTENING)

    def key(request: bytes, context: grpc.ServicerContext) -> bytes:
        return json.dumps(helper.key.to_record()).encode()

    methods = {"Key": _handler(key), "Answer": _handler(_answering(helper))}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"Expected an address to listen on, got {address}: {error}") from None
    return server, port


def _handler(call: Callable[[bytes, grpc.ServicerContext], bytes]) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(call)


def _answering(helper: Helper) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    log = getLogger(__name__)

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            answered = helper.answer(request)
        except ProtocolError as error:
            log.warning("refused: %s", error)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError from None  # abort raises
        log.info("answered a request of %d bytes", len(request))
        return answered

    return answer

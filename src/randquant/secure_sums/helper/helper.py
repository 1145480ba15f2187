"""The helper's side: it adds up the masks of one set of clients in each session."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from randquant._internal import validate
from randquant.channels.keys import Key
from randquant.secure_sums import identities, masks
from randquant.secure_sums.helper import joint_seed, proven
from randquant.secure_sums.helper.journal import ONE_SET_ONLY, Accounts, HelperJournal
from randquant.secure_sums.helper.message import HelperTerms, context
from randquant.secure_sums.helper.request import (
    INVALID,
    SPENT,
    UNOPENED,
    UNSIGNED,
    HelperRequest,
    read_listed,
    write_answer,
    write_listed,
)
from randquant.secure_sums.helper.sealing import HYBRID, SUITES, HelperKey, OpeningKey
from randquant.secure_sums.secagg.terms import ProtocolError

Check = Callable[[], None]
"""Function that is called between the steps of an answer, and raises ProtocolError if the server no
longer waits for it."""

Affords = Callable[[HelperTerms, Mapping[str, int], Check], bool]
"""Function that returns True if a client may be in a sum of these terms, given its number of sums
for each offer, by the offer's text, this sum included. Sums whose offer's text was in no request
are counted under the empty text. It calls the check between its long computations."""

DrawNoise = Callable[[float, int, Key], np.ndarray]
"""Function that returns a number of integers, (count,) int64, drawn from the discrete Gaussian law
of a variance with a key. It raises ValueError for a variance that it cannot draw."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HelperLimits:
    """The limits that a helper's operator sets to servers' requests.

    Args:
        least: fewest clients in a sum, whatever its terms say; with 2 also one, if this helper adds
            noise.
        most_sums: largest number of sums that a client may be in; None for any number.
        clients, coordinates: largest numbers in a sum, which bound the memory of one request. A
            code that is proven counts as its bits.
        masks: largest product of clients and coordinates, which bounds the time of one request.
        least_noise: smallest variance of the noise that the terms of a sum must ask this helper to
            add, in squared steps of the codes; 0 answers sums without noise too.
        affords: a limit of epsilon: called for each different account with this sum added. Requests
            must then bring the offer whose digest the terms have.
    """

    least: int = 2
    most_sums: int | None = None
    clients: int = 2**17
    coordinates: int = 2**25
    masks: int = 2**33
    least_noise: float = 0.0
    affords: Affords | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.whole("least", self.least, low=2)
        if self.most_sums is not None:
            validate.whole("most_sums", self.most_sums, low=1)
        validate.whole("clients", self.clients, low=2)
        validate.whole("coordinates", self.coordinates, low=1)
        validate.whole("masks", self.masks, low=1)
        validate.real("least_noise", self.least_noise, low=0)

    def check(self, request: HelperRequest) -> None:
        """Raise ProtocolError unless a request is within the limits that need no accounts."""
        # The cheap checks come before anything is opened or allocated: a server writes the terms.
        terms, count = request.terms, len(request.seeds)
        size = terms.dimension * max(terms.largest.bit_length(), 1)
        if size > self.coordinates:
            what = "bits of proven codes" if terms.largest else "coordinates"
            raise ProtocolError(
                f"Expected {self.coordinates} {what} at most, this helper's limit, got {size}."
            )
        if terms.noise_variance < self.least_noise:
            raise ProtocolError(
                f"Expected noise of a variance of {self.least_noise} or more, as this helper "
                f"demands, got {terms.noise_variance}."
            )
        # With the helper's noise a sum of one client is as safe as one of two. More than two are
        # this operator's own demand: a server cannot escape it by asking for a little noise.
        fewest = 1 if terms.noise_variance and self.least == 2 else self.least
        if terms.least < fewest:
            raise ProtocolError(
                f"Expected sums of {fewest} clients or more, as this helper demands, got "
                f"least={terms.least}."
            )
        # The guarantee of the terms is for at most `cohort` clients, whose codes the modulus holds.
        most = min(terms.cohort, self.clients)
        if count > most:
            raise ProtocolError(f"Expected {most} clients at most in this sum, got {count}.")
        if count * size > self.masks:
            raise ProtocolError(
                f"Expected clients times coordinates of {self.masks} at most, this helper's limit, "
                f"got {count} times {size}."
            )
        # Clients have sealed to the digest. A server that could bring another offer would have a
        # cheaper one counted than the clients answered.
        needed = self.affords is not None or bool(request.offer)
        digest = hashlib.sha256(request.offer.encode()).digest()
        if needed and digest != terms.offer:
            raise ProtocolError(
                f"Expected the offer whose digest the terms have, {terms.offer.hex()[:16]}..., got "
                f"an offer of {len(request.offer)} characters with digest {digest.hex()[:16]}...."
            )

    @property
    def counted(self) -> bool:
        # Without such a limit no accounts are read, which takes time for each client.
        return self.most_sums is not None or self.affords is not None

    def spent(
        self, request: HelperRequest, clients: Iterable[int], accounts: Accounts, check: Check
    ) -> set[int]:
        """Return those of a request's clients that may not be in one more sum."""
        if not self.counted:
            return set()
        offer = request.terms.offer
        texts = {**accounts.texts, offer: request.offer}
        # Bounds of epsilon take long, and most clients have the same account: one for each account.
        clients_by_account: dict[frozenset[tuple[bytes, int]], set[int]] = {}
        for client in clients:
            account = accounts.sums.get(client, Counter()) + Counter([offer])
            clients_by_account.setdefault(frozenset(account.items()), set()).add(client)
        beyond_limit = (
            members
            for account, members in _watched(clients_by_account.items(), check)
            if not self._allows(request, account, texts, check)
        )
        return set().union(*beyond_limit)

    def _allows(
        self,
        request: HelperRequest,
        account: frozenset[tuple[bytes, int]],
        texts: Mapping[bytes, str],
        check: Check,
    ) -> bool:
        if self.most_sums is not None and sum(n for _, n in account) > self.most_sums:
            return False
        # Added up by text: several digests of unknown text share the empty one.
        by_text: Counter[str] = Counter()
        for digest, count in account:
            by_text[texts[digest]] += count
        return self.affords is None or self.affords(request.terms, by_text, check)


class Helper:
    """A helper: `answer` takes a server's request for one set of clients, and adds up their masks.

    It never sees a masked vector. Its HPKE key is drawn when it starts, and signed by its identity,
    which clients know. Unless `kept`, the key is in this process's memory only: a session that was
    not answered when the process ends is lost, even if files are restored.

    Args:
        folder: where its journal is; several processes may share it.
        identity: its Ed25519 key, whose public half clients have in their settings.
        limits: those of its operator.
        directory: each client's public identity, 32 bytes of Ed25519: seeds without its signature
            are left out. Without a directory a server may invent clients.
        suite: the key's, `MLKEM768_X25519` or `X25519`.
        kept: keep the key in the folder, for a helper whose process ends after every message. Then
            a restored older copy of the folder has forgotten sessions, and may answer another set
            of clients: start once without `kept` after restoring it, which draws a new key.
        draw_noise: draws the noise of sums whose terms ask for it; None refuses these sums.

    Guarantees:
        One set of clients is answered for one digest of terms, ever; the same request again gets
        the same answer, also from another process. With `kept`, as long as no older copy of the
        folder comes back.
        At least `terms.least` seeds that open are in an answer.
        Before an answer is returned, all its clients' accounts have it, on the disk. No account
        counts less than was answered, unless an older copy of the folder comes back.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind.
        OSError: the folder cannot be used.

    Example:
        >>> import tempfile
        >>> from randquant.secure_sums.helper import HelperSum, masked_message
        >>> identity = Ed25519PrivateKey.generate()
        >>> pinned = identity.public_key().public_bytes_raw()
        >>> helper = Helper(Path(tempfile.mkdtemp()), identity)
        >>> terms = HelperTerms(b"run 7, round 1", helper.key, 100, 3, dimension=4, bits=8)
        >>> server = HelperSum(terms)
        >>> for client in (3, 5, 8):
        ...     codes = np.full(4, client, dtype=np.uint8)
        ...     server.add(client, masked_message(terms, client, codes, pinned))
        >>> server.unmask(helper.answer(server.request()), largest=15)
        array([16, 16, 16, 16], dtype=uint8)
    """

    def __init__(
        self,
        folder: Path | str,
        identity: Ed25519PrivateKey,
        limits: HelperLimits | None = None,
        directory: Mapping[int, bytes] | None = None,
        suite: str = HYBRID,
        *,
        kept: bool = False,
        draw_noise: DrawNoise | None = None,
    ) -> None:
        validate.kind("identity", identity, Ed25519PrivateKey)
        validate.choice("suite", suite, SUITES)
        if directory is not None:
            identities.check_directory(directory)
        self._limits, self._directory = limits or HelperLimits(), directory
        self._draw_noise = draw_noise
        self._identity = identity
        self._journal = HelperJournal(validate.path("folder", folder))
        self._opening = OpeningKey.generate(suite, identity)
        if kept:
            secret = self._journal.keep(self.key.fingerprint, self._opening.secret)
            self._opening = OpeningKey.from_secret(secret, identity)
        else:
            self._journal.begin(self.key.fingerprint)
        # By session: digests of the request and of the clients left out. A second record, since the
        # file may be replaced by an older copy, or changed, while this process runs.
        self._answered_sessions: dict[bytes, tuple[bytes, bytes]] = {}

    @property
    def key(self) -> HelperKey:
        # Part of the terms of each sum, so the server must have it before a round.
        return self._opening.key

    @property
    def identity(self) -> bytes:
        # Clients have it in their settings, and never take it from a server.
        return self._identity.public_key().public_bytes_raw()

    @property
    def sums(self) -> Mapping[int, int]:
        # By client, the number of sums that it is in.
        return self._journal.sums()

    def answer(self, request: bytes, check: Check = lambda: None) -> bytes:
        """Return the sum of the masks of a request's clients, for `HelperSum.unmask`.

        A request of `JointSeed` is answered by a signature. Clients whose seeds do not open or are
        not signed by them, or who are beyond the operator's limits, are left out, and listed.

        Args:
            request: a server's.
            check: ends the work, by a ProtocolError, if the server no longer waits for the answer.

        Raises:
            ProtocolError: the request is malformed, of another key, beyond a limit, of another set
                of clients than was answered, or of too few. Nothing is answered or counted then.
            OSError: the journal cannot be written.
        """
        if isinstance(request, bytes) and request.startswith(joint_seed.REQUEST_MAGIC):
            return joint_seed.signed(self._identity, request)
        parsed = HelperRequest.from_bytes(request)
        digest = parsed.terms.digest
        if parsed.terms.key != self.key:
            raise ProtocolError(
                f"Expected a sum with this helper's key, {self.key.fingerprint.hex()[:16]}..., got "
                f"one with {parsed.terms.key.fingerprint.hex()[:16]}...: if the helper has started "
                "again since, begin the round again with its new key."
            )
        self._limits.check(parsed)
        if parsed.terms.noise_variance and self._draw_noise is None:
            raise ProtocolError("Expected a sum without noise of this helper, which adds none.")
        # Two sets of clients in one session would reveal the difference of two sums, which may be
        # one client's codes (theory/helper-sums.md, Proposition 1).
        if self._answered_sessions.get(digest, (parsed.digest,))[0] != parsed.digest:
            raise ProtocolError(ONE_SET_ONLY)
        # Clients that an earlier answer left out are left out again, whatever limits and directory
        # say by now: else a second answer to the same request would be of another set.
        recorded = self._journal.find_session(digest, parsed.digest)
        if recorded is not None:
            left_out = read_listed(recorded)
            in_sum = parsed.seeds.keys() - left_out.keys()
            seeds = self._open_seeds(parsed, digest, _watched(in_sum, check))
        else:
            unsigned = self._unsigned(parsed, digest, check)
            signed = _watched(parsed.seeds.keys() - unsigned, check)
            seeds = self._open_seeds(parsed, digest, signed)
            recorded = self._record_session(parsed, digest, unsigned, seeds, check)
        # theory/helper-sums.md, Proposition 1: this process's memory decides if the file was
        # replaced in the meantime.
        session = parsed.digest, hashlib.sha256(recorded).digest()
        if self._answered_sessions.setdefault(digest, session) != session:
            raise ProtocolError(ONE_SET_ONLY)
        return self._sum_masks(parsed, read_listed(recorded), seeds, check)

    def _record_session(
        self,
        request: HelperRequest,
        digest: bytes,
        unsigned: Collection[int],
        seeds: Mapping[int, bytes],
        check: Check,
    ) -> bytes:
        """Decide which clients are left out, and write it to the disk before anything is answered.

        No lock is held while it decides, which may take minutes: other requests go on. If an
        account has changed in the meantime, it decides again.
        """
        invalid = self._invalid(request, digest, seeds, check)
        left_out = dict.fromkeys(request.seeds.keys() - seeds.keys(), UNOPENED)
        left_out |= dict.fromkeys(unsigned, UNSIGNED) | dict.fromkeys(invalid, INVALID)
        valid = request.seeds.keys() - left_out.keys()
        _check_least(request.terms, valid)
        if request.terms.noise_variance:
            # Of no coordinates: noise that cannot be drawn is refused before anything is counted.
            self._drawn(request.terms, 0, Key(bytes(32)))
        offer = request.terms.offer, request.offer if self._limits.affords else ""
        while True:
            accounts = self._journal.accounts(valid if self._limits.counted else ())
            spent = self._limits.spent(request, valid, accounts, check)
            in_sum = valid - spent
            _check_least(request.terms, in_sum)
            listed = write_listed(left_out | dict.fromkeys(spent, SPENT))
            check()
            recorded = self._journal.record(
                self.key.fingerprint, digest, request.digest, offer, in_sum, listed, accounts
            )
            if recorded is not None:
                return recorded

    def _unsigned(self, request: HelperRequest, digest: bytes, check: Check) -> set[int]:
        if self._directory is None:
            return set()
        return {
            client
            for client, seed in _watched(request.seeds.items(), check)
            if not seed.is_signed(digest, client, self._directory)
        }

    def _open_seeds(
        self, request: HelperRequest, digest: bytes, clients: Iterable[int]
    ) -> dict[int, bytes]:
        # By client; seeds that do not open under this client and these terms are missing. A server
        # that passes one client's seal off as another's, or as one of this sum, gets nothing.
        seeds = {}
        for client in clients:
            bound = context(digest, client) + request.seeds[client].bound
            seed = self._opening.open(request.seeds[client].sealed, bound)
            if seed is not None:
                seeds[client] = seed
        return seeds

    def _invalid(
        self, request: HelperRequest, digest: bytes, seeds: Mapping[int, bytes], check: Check
    ) -> set[int]:
        if not request.terms.largest:
            return set()
        opened = _watched(seeds.items(), check)
        return proven.invalid(request.terms, digest, request.verify_key, request.seeds, opened)

    def _sum_masks(
        self,
        request: HelperRequest,
        left_out: Mapping[int, int],
        seeds: Mapping[int, bytes],
        check: Check,
    ) -> bytes:
        # Of masks, or of the helper's shares where codes are proven. The clients left out are those
        # of the record, so that a repeated request has the same answer.
        terms, in_sum = request.terms, request.seeds.keys() - left_out.keys()
        secrets = [seeds[client] for client in in_sum]
        if terms.largest:
            total = proven.helper_total(terms, terms.digest, _watched(secrets, check))
        else:
            total = np.zeros(terms.dimension, dtype=masks.dtype(terms.bits))
            masks.add_all(total, secrets, +1, check)
            if terms.noise_variance:
                # Masks are subtracted from the sum of masked codes: noise, too, with its sign.
                total -= self._noise(request, left_out).astype(total.dtype)
        return write_answer(request, left_out, total)

    def _noise(self, request: HelperRequest, left_out: Mapping[int, int]) -> np.ndarray:
        """Return the noise of one request: the same again for the same request only.

        theory/helper-sums.md, Proposition 13. It follows from the helper's secret and from the
        request with all its bytes, and not from the session alone: should another set of clients
        ever be answered in one session (a restored folder, a copied process), the difference of the
        two answers has the noise of both, and would be exact with one noise for the session.
        """
        secret = hmac.digest(self._opening.secret, b"randquant helper noise\0", "sha256")
        clients_in_sum = request.digest + hashlib.sha256(write_listed(left_out)).digest()
        key = Key(hmac.digest(secret, clients_in_sum, "sha256"))
        return self._drawn(request.terms, request.terms.dimension, key)

    def _drawn(self, terms: HelperTerms, count: int, key: Key) -> np.ndarray:
        assert self._draw_noise is not None  # `answer` has refused the request otherwise
        try:
            return self._draw_noise(terms.noise_variance, count, key)
        except ValueError as error:
            raise ProtocolError(str(error)) from None


def _check_least(terms: HelperTerms, clients: Collection[int]) -> None:
    if len(clients) < terms.least:
        raise ProtocolError(
            f"Expected seeds of {terms.least} clients or more that are valid and within the "
            f"helper's limits, got {len(clients)}."
        )


def _watched(items: Iterable[T], check: Check) -> Iterator[T]:
    for item in items:
        check()
        yield item

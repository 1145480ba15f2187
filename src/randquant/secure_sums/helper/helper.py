"""The helper's side: it adds up the masks of one set of clients in each session, and records it."""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from randquant._internal import validate
from randquant._internal.files import Database, make_folder
from randquant.channels.keys import Key
from randquant.secure_sums.helper import proven
from randquant.secure_sums.helper.message import (
    HYBRID,
    JOINT_SEED_MAGIC,
    SUITES,
    HelperKey,
    HelperTerms,
    OpeningKey,
    context,
    sign_commitment,
)
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
from randquant.secure_sums.terms import ProtocolError, add_masks, check_directory, mask_dtype

JOURNAL_NAME = "helper.sqlite"
JOURNAL_VERSION = 1
JOURNAL_TABLES = (
    "CREATE TABLE helper (only INTEGER PRIMARY KEY, fingerprint BLOB, secret BLOB)",
    "CREATE TABLE sessions (terms BLOB PRIMARY KEY, request BLOB, left_out BLOB) WITHOUT ROWID",
    "CREATE TABLE offers (offer INTEGER PRIMARY KEY, digest BLOB UNIQUE, text TEXT)",
    "CREATE TABLE sums (client INTEGER, offer INTEGER, count INTEGER, PRIMARY KEY (client, offer))"
    " WITHOUT ROWID",
)


ONE_SET_ONLY = (
    "Expected one set of clients in a session, got a second set after the first was answered."
)


@dataclass(frozen=True)
class Accounts:
    """The sums that some clients are in.

    Attributes:
        sums: by client, its number of sums for each offer, by the offer's digest.
        texts: the offers' texts by their digests; empty if an offer's text was not kept.
    """

    sums: Mapping[int, Counter[bytes]]
    texts: Mapping[bytes, str]


class HelperJournal:
    """The file in a helper's folder, which several processes of one helper may share.

    It has the set of clients of each session, and each client's account. A session and the sums
    that it adds to accounts are one transaction of SQLite, on the disk before anything is answered:
    whenever the process ends, the file has both or neither.

    Args:
        folder: where the file is; it is created if need be. Only this user can read the file.

    Raises:
        OSError: the file cannot be written, is not a regular file, has a second name, is open to
            other users or is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL_NAME
        self._database = Database(self.path, JOURNAL_TABLES, JOURNAL_VERSION, "a helper's journal")
        make_folder(folder)
        self._database.create()

    def begin(self, fingerprint: bytes) -> None:
        with self._database.transaction() as database:
            # Sessions of earlier keys cannot be answered any more: those keys are gone. Accounts
            # stay, since clients have answered.
            database.execute("DELETE FROM sessions")
            database.execute("REPLACE INTO helper VALUES (0, ?, NULL)", [fingerprint])

    def keep(self, fingerprint: bytes, secret: bytes) -> bytes:
        """Return the file's secret key.

        If the file has none of this length, the given one is stored and returned.
        """
        with self._database.transaction() as database:
            row = database.execute("SELECT secret FROM helper").fetchone()
            # A key of another length is of another suite, which the operator no longer wants.
            if row is not None and row[0] is not None and len(row[0]) == len(secret):
                return row[0]
            database.execute("DELETE FROM sessions")
            database.execute("REPLACE INTO helper VALUES (0, ?, ?)", [fingerprint, secret])
            return secret

    def find_session(self, terms: bytes, request: bytes) -> bytes | None:
        """Return the clients left out of an answered session; None for a new session.

        Args:
            terms: digest of its terms.
            request: digest of the request.

        Raises:
            ProtocolError: another request of this session was answered.
        """
        with self._database.reading() as database:
            return _find_session(database, terms, request)

    def accounts(self, clients: Collection[int]) -> Accounts:
        with self._database.reading() as database:
            sums = _sums(database, clients)
            # Each text once, and not once for each client: a few long ones of many clients would
            # take minutes, in which no other server's sum gets the file.
            texts = database.execute(
                "SELECT digest, text FROM offers "
                "WHERE offer IN (SELECT offer FROM asked JOIN sums USING (client))"
            )
            return Accounts(sums, dict(texts))

    def record(
        self,
        fingerprint: bytes,
        terms: bytes,
        request: bytes,
        offer: tuple[bytes, str],
        counted: Collection[int],
        left_out: bytes,
        accounts: Accounts,
    ) -> bytes | None:
        """Write a session to the disk, and count it for its clients, before it is answered.

        Args:
            fingerprint: that of this process's key.
            terms, request: as in `find_session`.
            offer: digest and text of the offer that the clients have answered.
            counted: the clients in the sum.
            left_out: all other clients of the request, encoded.
            accounts: those by which the clients were chosen.

        Returns:
            The clients left out: those recorded before, if this request was. None, with nothing
            recorded, if one of the accounts has changed: choose again.

        Raises:
            ProtocolError: another request of this session was answered, or another process has
                started with this file and has another key.
        """
        with self._database.transaction() as database:
            row = database.execute("SELECT fingerprint FROM helper").fetchone()
            # A helper that started later has a key of its own, and has deleted the sessions of this
            # one: its file no longer says what was answered with this key.
            if row is None or row[0] != fingerprint:
                raise ProtocolError(
                    "Expected this helper to be the one that started last in its folder, but "
                    "another one has: ask that one."
                )
            earlier = _find_session(database, terms, request)
            if earlier is not None:
                return earlier
            # Within the same transaction: two sums at once cannot both pass a limit for one client.
            if accounts.sums != _sums(database, accounts.sums):
                return None
            digest, text = offer
            # A text that an earlier request did not bring is filled in.
            database.execute(
                "INSERT INTO offers (digest, text) VALUES (?, ?) ON CONFLICT (digest) DO UPDATE "
                "SET text = excluded.text WHERE text = ''",
                [digest, text],
            )
            (offer_key,) = database.execute(
                "SELECT offer FROM offers WHERE digest = ?", [digest]
            ).fetchone()
            database.executemany(
                "INSERT INTO sums VALUES (?, ?, 1) "
                "ON CONFLICT (client, offer) DO UPDATE SET count = count + 1",
                ((_to_signed(client), offer_key) for client in counted),
            )
            database.execute("INSERT INTO sessions VALUES (?, ?, ?)", [terms, request, left_out])
            return left_out

    def sums(self) -> dict[int, int]:
        with self._database.reading() as database:
            rows = database.execute("SELECT client, SUM(count) FROM sums GROUP BY client")
            return {client + 2**63: count for client, count in rows}


def _sums(database: sqlite3.Connection, clients: Collection[int]) -> dict[int, Counter[bytes]]:
    # By client, its number of sums for each offer. Leaves a table of the clients, which exists
    # until the connection is closed: once in a transaction.
    database.execute("CREATE TEMP TABLE asked (client INTEGER PRIMARY KEY)")
    database.executemany("INSERT INTO asked VALUES (?)", ((_to_signed(c),) for c in clients))
    sums: dict[int, Counter[bytes]] = {client: Counter() for client in clients}
    for client, digest, count in database.execute(
        "SELECT client, digest, count FROM asked JOIN sums USING (client) JOIN offers USING (offer)"
    ):
        sums[client + 2**63][digest] = count
    return sums


def _find_session(database: sqlite3.Connection, terms: bytes, request: bytes) -> bytes | None:
    row = database.execute(
        "SELECT request, left_out FROM sessions WHERE terms = ?", [terms]
    ).fetchone()
    if row is None:
        return None
    # theory/helper-sums.md, Proposition 1: a second set would reveal a difference of two sums.
    if row[0] != request:
        raise ProtocolError(ONE_SET_ONLY)
    return row[1]


def _to_signed(client: int) -> int:
    # SQLite's integers are signed: a client's number, 0 to 2**64 - 1, is shifted.
    return client - 2**63


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
            check_directory(directory)
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
        if isinstance(request, bytes) and request.startswith(JOINT_SEED_MAGIC):
            return sign_commitment(self._identity, request)
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
            total = np.zeros(terms.dimension, dtype=mask_dtype(terms.bits))
            add_masks(total, secrets, +1, check)
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

"""The helper's side: it adds up the masks of one set of clients in each session."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from randquant._internal import validate
from randquant.secure_sums import identities, masks
from randquant.secure_sums.helper import joint_seed, proven
from randquant.secure_sums.helper.journal import ANOTHER, Accounts, HelperJournal
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
"""Is called between the steps of an answer; it raises ProtocolError if nobody waits for it."""

Affords = Callable[[HelperTerms, Mapping[str, int], Check], bool]
"""Whether a client may be in a sum of these terms, from how many sums it is in with it, by the text
of the offer; those whose text no request has brought are under the empty text. What takes long is
done between calls of the check."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HelperLimits:
    """What a helper's operator allows servers.

    Args:
        least: fewest clients in a sum, whatever its terms say.
        most_sums: in how many sums a client may be; None for any number.
        clients, coordinates: most of a sum: what memory one request may take. A code that is proven
            counts as its bits.
        masks: most clients times coordinates: what time it may take.
        affords: a limit of epsilon: asked for each different account with this sum added. Requests
            must then bring the offer whose digest the terms have.
    """

    least: int = 2
    most_sums: int | None = None
    clients: int = 2**17
    coordinates: int = 2**25
    masks: int = 2**33
    affords: Affords | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.whole("least", self.least, low=2)
        if self.most_sums is not None:
            validate.whole("most_sums", self.most_sums, low=1)
        validate.whole("clients", self.clients, low=2)
        validate.whole("coordinates", self.coordinates, low=1)
        validate.whole("masks", self.masks, low=1)

    def check(self, request: HelperRequest) -> None:
        """Raise ProtocolError unless a request is within what does not depend on accounts."""
        terms, count = request.terms, len(request.seeds)
        size = terms.dimension * max(terms.largest.bit_length(), 1)
        if size > self.coordinates:
            what = "bits of proven codes" if terms.largest else "coordinates"
            raise ProtocolError(
                f"Expected {self.coordinates} {what} at most, this helper's limit, got {size}."
            )
        if terms.least < self.least:
            raise ProtocolError(
                f"Expected sums of {self.least} clients or more, as this helper demands, got "
                f"least={terms.least}."
            )
        most = min(terms.cohort, self.clients)
        if count > most:
            raise ProtocolError(f"Expected {most} clients at most in this sum, got {count}.")
        if count * size > self.masks:
            raise ProtocolError(
                f"Expected clients times coordinates of {self.masks} at most, this helper's limit, "
                f"got {count} times {size}."
            )
        asked = self.affords is not None or bool(request.offer)
        if asked and hashlib.sha256(request.offer.encode()).digest() != terms.offer:
            raise ProtocolError(
                "Expected the offer whose digest the terms have, got another or none."
            )

    @property
    def counted(self) -> bool:
        """Whether it depends on clients' accounts who may be in a sum."""
        return self.most_sums is not None or self.affords is not None

    def spent(
        self, request: HelperRequest, clients: Iterable[int], accounts: Accounts, check: Check
    ) -> set[int]:
        """Those of a request's clients that may not be in one more sum."""
        if not self.counted:
            return set()
        offer = request.terms.offer
        texts = {**accounts.texts, offer: request.offer}
        equal: dict[frozenset[tuple[bytes, int]], set[int]] = {}
        for client in clients:
            account = accounts.sums.get(client, Counter()) + Counter([offer])
            equal.setdefault(frozenset(account.items()), set()).add(client)
        beyond = (
            who
            for account, who in _watched(equal.items(), check)
            if not self._allows(request, account, texts, check)
        )
        return set().union(*beyond)

    def _allows(
        self,
        request: HelperRequest,
        account: frozenset[tuple[bytes, int]],
        texts: Mapping[bytes, str],
        check: Check,
    ) -> bool:
        if self.most_sums is not None and sum(n for _, n in account) > self.most_sums:
            return False
        by_text: Counter[str] = Counter()
        for digest, count in account:
            by_text[texts[digest]] += count
        return self.affords is None or self.affords(request.terms, by_text, check)


class Helper:
    """A helper: `answer` takes a server's request for one set of clients, and adds up their masks.

    It never sees a masked vector. Its HPKE key is drawn when it starts, and signed by its identity,
    which clients know. Unless `kept`, the key is in this process's memory only: a session that was
    not answered when the process ends is lost, whoever restores which files.

    Args:
        folder: of its journal; several processes may share it.
        identity: its Ed25519 key, whose public half clients have in their settings.
        limits: of its operator.
        directory: each client's public identity, 32 bytes of Ed25519: seeds without its signature
            are left out. Without a directory a server may invent clients.
        suite: of the key, `MLKEM768_X25519` or `X25519`.
        kept: keep the key in the folder, for a helper whose process ends after every message. Then
            a restored older copy of the folder has forgotten sessions, and may answer another set
            of clients: start once without `kept` after restoring it, which draws a new key.

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
    ) -> None:
        validate.kind("identity", identity, Ed25519PrivateKey)
        validate.choice("suite", suite, SUITES)
        if directory is not None:
            identities.check_directory(directory)
        self._limits, self._directory = limits or HelperLimits(), directory
        self._identity = identity
        self._journal = HelperJournal(validate.path("folder", folder))
        self._opening = OpeningKey.generate(suite, identity)
        if kept:
            secret = self._journal.keep(self.key.fingerprint, self._opening.secret)
            self._opening = OpeningKey.of_secret(secret, identity)
        else:
            self._journal.begin(self.key.fingerprint)
        # Request, and a digest of who is left out, of each session: also where the disk forgets, or
        # somebody changes it, while this runs.
        self._answered: dict[bytes, tuple[bytes, bytes]] = {}

    @property
    def key(self) -> HelperKey:
        """Its public key, for the terms of sums: announce it to the server."""
        return self._opening.key

    @property
    def identity(self) -> bytes:
        """Its public identity, 32 bytes, which clients have in their settings."""
        return self._identity.public_key().public_bytes_raw()

    @property
    def sums(self) -> Mapping[int, int]:
        """In how many sums each client is, by its number."""
        return self._journal.sums()

    def answer(self, request: bytes, check: Check = lambda: None) -> bytes:
        """The sum of the masks of a request's clients, for `HelperSum.unmask`.

        A request of `JointSeed` is answered by a signature. Clients whose seeds do not open, are
        not signed by them, or who are beyond the operator's limits are left out, and listed.

        Args:
            request: a server's.
            check: ends the work, by a ProtocolError, if nobody waits for the answer any more.

        Raises:
            ProtocolError: the request is malformed, of another key, beyond a limit, of another set
                of clients than was answered, or of too few. Nothing is answered or counted then.
            OSError: the journal cannot be written.
        """
        if isinstance(request, bytes) and request.startswith(joint_seed.ASKED):
            return joint_seed.signed(self._identity, request)
        asked = HelperRequest.from_bytes(request)
        digest = asked.terms.digest
        if asked.terms.key != self.key:
            raise ProtocolError(
                "Expected a sum with this helper's key, got one with another: if the helper has "
                "started again since, begin the round again with its new key."
            )
        self._limits.check(asked)
        if self._answered.get(digest, (asked.digest,))[0] != asked.digest:
            raise ProtocolError(ANOTHER)
        recorded = self._journal.answered(digest, asked.digest)
        if recorded is not None:
            left_out = read_listed(recorded)
            kept = asked.seeds.keys() - left_out.keys()
            seeds = self._opened(asked, digest, _watched(kept, check))
        else:
            unsigned = self._unsigned(asked, digest, check)
            opened = _watched(asked.seeds.keys() - unsigned, check)
            seeds = self._opened(asked, digest, opened)
            recorded = self._recorded(asked, digest, unsigned, seeds, check)
        # theory/helper-sums.md, Proposition 1: memory decides, where the file is another by now.
        answered = asked.digest, hashlib.sha256(recorded).digest()
        if self._answered.setdefault(digest, answered) != answered:
            raise ProtocolError(ANOTHER)
        return self._streams(asked, read_listed(recorded), seeds, check)

    def _recorded(
        self,
        asked: HelperRequest,
        digest: bytes,
        unsigned: Collection[int],
        seeds: Mapping[int, bytes],
        check: Check,
    ) -> bytes:
        """Decide who is left out, and put it on the disk: nobody else waits for the deciding."""
        invalid = self._invalid(asked, digest, seeds, check)
        left_out = dict.fromkeys(asked.seeds.keys() - seeds.keys(), UNOPENED)
        left_out |= dict.fromkeys(unsigned, UNSIGNED) | dict.fromkeys(invalid, INVALID)
        valid = asked.seeds.keys() - left_out.keys()
        _check_least(asked.terms, valid)
        offer = asked.terms.offer, asked.offer if self._limits.affords else ""
        while True:
            accounts = self._journal.accounts(valid if self._limits.counted else ())
            spent = self._limits.spent(asked, valid, accounts, check)
            counted = valid - spent
            _check_least(asked.terms, counted)
            listed = write_listed(left_out | dict.fromkeys(spent, SPENT))
            check()
            recorded = self._journal.record(
                self.key.fingerprint, digest, asked.digest, offer, counted, listed, accounts
            )
            if recorded is not None:
                return recorded

    def _unsigned(self, asked: HelperRequest, digest: bytes, check: Check) -> set[int]:
        """Clients without a valid signature; none without a directory."""
        if self._directory is None:
            return set()
        return {
            client
            for client, seed in _watched(asked.seeds.items(), check)
            if not seed.is_signed(digest, client, self._directory)
        }

    def _opened(
        self, asked: HelperRequest, digest: bytes, clients: Iterable[int]
    ) -> dict[int, bytes]:
        """The seeds that open, by client."""
        found = {}
        for client in clients:
            bound = context(digest, client) + asked.seeds[client].bound
            seed = self._opening.open(asked.seeds[client].sealed, bound)
            if seed is not None:
                found[client] = seed
        return found

    def _invalid(
        self, asked: HelperRequest, digest: bytes, seeds: Mapping[int, bytes], check: Check
    ) -> set[int]:
        """Clients whose codes are not proven valid; none without proofs."""
        if not asked.terms.largest:
            return set()
        opened = _watched(seeds.items(), check)
        return proven.invalid(asked.terms, digest, asked.verify_key, asked.seeds, opened)

    def _streams(
        self,
        asked: HelperRequest,
        left_out: Mapping[int, int],
        seeds: Mapping[int, bytes],
        check: Check,
    ) -> bytes:
        """The answer: the sum of the masks, or shares, of all that are not left out."""
        terms, kept = asked.terms, asked.seeds.keys() - left_out.keys()
        secrets = (seeds[client] for client in _watched(kept, check))
        if terms.largest:
            total = proven.helper_total(terms, terms.digest, secrets)
        else:
            total = np.zeros(terms.dimension, dtype=masks.dtype(terms.bits))
            masks.add_all(total, secrets, +1)
        return write_answer(asked, left_out, total)


def _check_least(terms: HelperTerms, clients: Collection[int]) -> None:
    if len(clients) < terms.least:
        raise ProtocolError(
            f"Expected seeds of {terms.least} clients or more that are valid and within the "
            f"helper's limits, got {len(clients)}."
        )


def _watched(parts: Iterable[T], check: Check) -> Iterator[T]:
    """The same, with a check before each."""
    for part in parts:
        check()
        yield part

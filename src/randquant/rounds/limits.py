"""A client's limits: which offers of a server it accepts, and what it keeps of a round."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant.aggregation import layout as layouts
from randquant.aggregation.layout import Arrays, Buffers, Layout, Patterns
from randquant.privacy.accounting.release_protocol import check_examples
from randquant.privacy.guarantee import DEFAULT_DELTA, NEIGHBORINGS, Neighboring, Trust
from randquant.rounds.accountant import THIS_CLIENT, DamagedFile, RoundEvent, RunAccountant, State
from randquant.rounds.protocol import read_terms, terms_text
from randquant.secure_sums.secagg.client import Client
from randquant.secure_sums.terms import (
    DEFAULT_THRESHOLD_SHARE,
    ProtocolError,
    Terms,
    check_directory,
    check_draw,
    check_identity,
)

if TYPE_CHECKING:
    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.rounds.offer import Offer
    from randquant.secure_sums.helper.message import HelperTerms


HELPER_PATTERN = re.compile("[0-9a-fA-F]{64}")
"""An Ed25519 public key in hexadecimal digits."""


OPERATOR_NUMBERS = ("epsilon", "epsilon-alone", "delta", "threshold", "clip-norm")
OPERATOR_SETTINGS = tuple(
    f"randquant-{name}"
    for name in (
        *OPERATOR_NUMBERS, "examples", "all-neighbours", "helper", "ledger", "identity", "directory"
    )
)  # fmt: skip
"""Names that an operator's settings may have, files of `Member` among them."""

NO_FILE = "none"
"""Value of `randquant-ledger` with which an operator does without a file for the account."""


@dataclass(frozen=True)
class ClientLimits:
    """A client's limits on the offers of servers.

    Args:
        epsilon: limit of this client's epsilon at `delta`. The client computes a proven bound
            itself, from the offered channel and its own count of its answers, and refuses any
            answer that would exceed the limit, which is what bounds the number of rounds too
            (`Privacy.max_participations` is the server's setting). Infinity sets no limit.
        delta: in (0, 1).
        neighboring: what the guarantee hides.
        trust: `local` refuses offers that need secure aggregation.
        all_neighbours: refuse sums in which this client does not share masks with all others.
            Without it a malicious server can learn sums of a few clients
            (`docs/secure-aggregation.md`); one that follows the protocol cannot.
        colluders: number of other clients in a sum that may tell the server all they know: refuse
            offers that need the noise of more than `least` minus this number, and sums whose
            threshold this number of clients could get around.
        threshold: least fraction of a client's neighbours that must answer to remove its mask; no
            server can ask for less.
        parts, frozen: patterns of the names of arrays, as `randquant.Local` takes them: refuse
            offers to train any other arrays. None accepts the offer's.
        buffers: treatment of running statistics: refuse offers with a different one. None accepts
            the offer's.
        epsilon_alone: limit of the epsilon without other clients' noise: of what is left if the
            server has invented all of them, or if they reveal all they know to it. Noise that the
            helper of a sum adds counts in it. Infinity sets no limit.
        helper: public identity, 64 hexadecimal digits, of the helper that this client trusts not to
            collude with the server: refuse sums with another one. None refuses all of them.
        examples: protect one example (one patient) instead of all data of this client, whose
            training code clips the gradient of each to `clip_norm` and returns their sum
            (`randquant.example_update`). It is divided by this public number, such as all clients'
            examples over the number of clients, before it is encoded.
        clip_norm: what the training code clips gradients to, needed with `examples`: refuse a
            mechanism with a smaller threshold, by which an example would count for less.
    """

    epsilon: float
    delta: float = DEFAULT_DELTA
    neighboring: Neighboring = "replace_one"
    trust: Trust = "aggregate"
    all_neighbours: bool = True
    colluders: int = 0
    threshold: float = DEFAULT_THRESHOLD_SHARE
    parts: Patterns = None
    frozen: Patterns = None
    buffers: Buffers | None = None
    epsilon_alone: float = math.inf
    helper: str | None = None
    examples: int | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        for name in ("epsilon", "epsilon_alone"):
            if getattr(self, name) != math.inf:
                validate.real(name, getattr(self, name), above=0)
        validate.real("delta", self.delta, above=0, below=1)
        validate.choice("neighboring", self.neighboring, NEIGHBORINGS)
        validate.choice("trust", self.trust, ("local", "aggregate"))
        validate.flag("all_neighbours", self.all_neighbours)
        validate.whole("colluders", self.colluders, low=0)
        validate.real("threshold", self.threshold, above=0, high=1)
        if self.helper is not None and not HELPER_PATTERN.fullmatch(str(self.helper)):
            raise ValueError(
                "Expected a helper's identity in 64 hexadecimal digits, as randquant helper keygen "
                f"prints it, got {validate.shown(self.helper)}."
            )
        if self.helper is not None:
            check_identity(bytes.fromhex(self.helper))
        if self.buffers is not None:
            validate.choice("buffers", self.buffers, layouts.BUFFER_MODES)
        if self.examples is not None:
            check_examples(self.examples)
        if self.clip_norm is not None:
            validate.real("clip_norm", self.clip_norm, low=1e-30, high=1e30)

    def with_operator_settings(self, config: Mapping[str, Any]) -> ClientLimits:
        """Return these limits, replaced by those that the client's operator has set.

        Args:
            config: the operator's settings, never a server's, which could loosen a limit.

        Raises:
            ValueError: one is out of bounds, or of a name that nothing reads; or a directory comes
                without a file for the account.
        """
        _check_operator_settings(config)
        settings: dict[str, Any] = {}
        for name in OPERATOR_NUMBERS:
            if (value := config.get(f"randquant-{name}")) is not None:
                settings[name.replace("-", "_")] = _operator_number(name, value, float)
        if (value := config.get("randquant-examples")) is not None:
            settings["examples"] = _operator_number("examples", value, int)
        if (value := config.get("randquant-all-neighbours")) is not None:
            settings["all_neighbours"] = value not in (False, "false")
        if (value := config.get("randquant-helper")) is not None:
            settings["helper"] = str(value)
        return replace(self, **settings) if settings else self

    @property
    def helper_identity(self) -> bytes:
        """The trusted helper's identity, 32 bytes; ProtocolError if this client trusts none."""
        if self.helper is None:
            raise ProtocolError(
                "Expected a sum without a helper, as this client trusts none, got terms of a sum "
                "with a helper."
            )
        return bytes.fromhex(self.helper)

    def empty_account(self) -> RunAccountant:
        return RunAccountant(self.delta, self.neighboring, self.epsilon)

    def check_offer(
        self, offer: Offer, terms: Terms | HelperTerms | None, accountant: RunAccountant
    ) -> None:
        """Raise ProtocolError unless this client agrees to an offer, and can afford it.

        Args:
            offer: the server's.
            terms: of the secure sum, among clients or with a helper; None without one.
            accountant: this client's earlier answers. A refusal may leave the refused answer in it:
                do not use it afterwards.
        """
        mechanism = offer.mechanism
        if terms is None and mechanism.trust != "local":
            # Alone, this client's codes would have less noise than the offer's guarantee counts on.
            raise ProtocolError(
                "Expected the terms of a secure sum, which an offer of aggregate trust needs, got "
                "an offer without terms."
            )
        if self.trust == "local" and mechanism.trust != "local":
            raise ProtocolError(
                "Expected an offer of local trust, as this client demands, got aggregate trust."
            )
        if self.examples is not None:
            self._check_clip_norm(mechanism.clip_norm)
        if terms is not None:
            self._check_terms(offer, terms)
        # Last, because it takes longest: a stranger's request is refused cheaply where it can be.
        self._check_epsilon(RoundEvent(offer, frozenset({THIS_CLIENT})), accountant)

    def _check_clip_norm(self, offered: float | None) -> None:
        # Accounting takes one example's influence from the mechanism's clip_norm: at a smaller one
        # it would charge less than the example may move the mean.
        if offered is None:  # of a survey, which clips its vectors itself
            return
        if self.clip_norm is None or offered < self.clip_norm:
            client = "without clip_norm" if self.clip_norm is None else f"at {self.clip_norm}"
            raise ProtocolError(
                "Expected a mechanism that clips at what this client's training code clips each "
                f"example's gradient to, or above, got one that clips at {offered} for a client "
                f"{client}: set clip_norm at the client to the training code's threshold, and plan "
                "the mechanism for it."
            )

    def _check_epsilon(self, event: RoundEvent, accountant: RunAccountant) -> None:
        limits = [(accountant.max_epsilon, False, "")]
        if self.epsilon_alone != math.inf:
            limits.append((self.epsilon_alone, True, " if all other clients are invented"))
        for limit, without_others, condition in limits:
            if accountant.would_exceed(event, limit, without_others=without_others):
                # This epsilon depends on offers and not on data: the server may read it.
                accountant.compose(event)
                epsilon = accountant.get_epsilon(accountant.delta, without_others=without_others)
                raise ProtocolError(
                    f"Expected an offer within epsilon {limit}, this client's limit{condition}, "
                    f"got {_shown(epsilon)} with all earlier answers, at delta {accountant.delta}."
                )

    def _check_terms(self, offer: Offer, terms: Terms | HelperTerms) -> None:
        # From `least` and not from the clients that were asked: a server may claim that all beyond
        # `least` were lost. The noise of colluders hides nothing: they know their own codes.
        # This client itself is honest.
        honest = max(terms.least - self.colluders, 1)
        clients = len(terms.clients) if isinstance(terms, Terms) else terms.cohort
        if offer.mechanism.cohort > honest:
            raise ProtocolError(
                f"Expected an offer for a cohort of at most {honest}, the clients of every sum "
                f"without those that may collude, got {offer.mechanism.cohort}."
            )
        self._check_modulus(offer, terms, clients)
        variance = 0.0 if isinstance(terms, Terms) else terms.noise_variance
        if variance < (needed := offer.helper_variance):
            # This client adds no noise to such codes: without the helper's the sum reveals them.
            raise ProtocolError(
                f"Expected terms by which a helper adds noise of a variance of {needed} or more to "
                f"the sum, as the offer's guarantee needs, got {variance}."
            )
        if variance and not needed:
            # Terms with the helper's noise say that no other client is counted on.
            raise ProtocolError(
                "Expected terms without a helper's noise for a mechanism whose clients add their "
                f"own, got a variance of {variance}."
            )
        if isinstance(terms, Terms):
            self._check_neighbours(terms)
        else:
            _check_largest(offer, terms)
            # Against the identity in this client's settings: a server that named a helper of its
            # own could open the seed, and see the codes.
            terms.key.check(self.helper_identity)

    def _check_modulus(self, offer: Offer, terms: Terms | HelperTerms, clients: int) -> None:
        needed = offer.sum_bits(clients)
        # A sum that wraps around is no less private, but wrong: this client's answer, which costs
        # it epsilon, would be wasted.
        if terms.bits < needed:
            raise ProtocolError(
                f"Expected a modulus of {needed} bits or more for a sum over {clients} clients, "
                f"got {terms.bits}: it would wrap around."
            )
        # theory/additive.md, Proposition 10: a wider sum would show how many clients' remainders
        # had wrapped around, which their noise hides far less than the sum.
        if terms.bits > needed and offer.sends_remainders:
            raise ProtocolError(
                f"Expected the modulus of {needed} bits that the offered mechanism's codes are "
                f"remainders of, got {terms.bits}: a wider sum reveals more than is counted."
            )

    def _check_neighbours(self, terms: Terms) -> None:
        others = len(terms.clients) - 1
        if self.all_neighbours and terms.neighbours < others:
            raise ProtocolError(
                f"Expected all {others} others as neighbours, got {terms.neighbours}: with fewer, "
                "a malicious server can learn sums of a few clients."
            )
        # `threshold` shares give away one of this client's two secrets, and both secrets together
        # give away its codes. That takes 2 * threshold shares. Honest neighbours reveal one each
        # and colluders both, so a server can have neighbours + colluders of them.
        if 2 * terms.threshold - terms.neighbours <= self.colluders:
            raise ProtocolError(
                f"Expected a threshold that {self.colluders} colluders cannot get around, got "
                f"{terms.threshold} of {terms.neighbours} neighbours."
            )

    def layout(self, offer: Offer, model: Arrays) -> Layout:
        """Return the trained arrays; ProtocolError unless the model matches offer and limits."""
        try:
            layout = Layout.from_model(model, offer.parts or None)
        except layouts.UnknownPart as error:
            # The name is the server's word: only the cause has it, in this client's log.
            raise ProtocolError(
                "Expected an offer to train arrays of floating-point numbers that the model has, "
                "other than running statistics, got a name that is not one of theirs."
            ) from error
        expected = layout.parts
        if self.parts is not None or self.frozen is not None:
            expected = layouts.trained_names(model, self.parts, self.frozen)
        if layout.parts != expected:
            # Numbers only: names of arrays are the server's words.
            raise ProtocolError(
                f"Expected an offer to train the {len(expected)} arrays that this client trains, "
                f"got {len(layout.parts)} arrays, not all of them the same."
            )
        if layout.dimension != offer.update_dimension:
            raise ProtocolError(
                f"Expected {offer.update_dimension} coordinates as offered, got {layout.dimension}."
            )
        if offer.buffers != (self.buffers or offer.buffers):
            raise ProtocolError(
                f"Expected an offer with buffers={self.buffers!r}, as this client demands, got "
                f"{offer.buffers!r}."
            )
        if layout.running and offer.buffers == "refuse":
            raise ProtocolError(
                "Expected a model without running statistics, as the offer says, got "
                f"{len(layout.running)} of them: {layouts.WAY_OUT}."
            )
        if offer.mechanism.from_zero and any(model[name].any() for name in layout.parts):
            # Differences from other numbers are rounded, and rounding may tell records apart: a
            # server could choose the numbers at which it does.
            raise ProtocolError("Expected arrays of zeros to answer a survey, got other numbers.")
        if not layout.finite(model):
            # Refused before training: its update would not be finite, so zeros would be sent.
            raise ProtocolError("Expected finite numbers in the model, got NaN or infinity.")
        return layout


def _check_operator_settings(config: Mapping[str, Any]) -> None:
    for name in config:
        # A limit with a mistyped name, or of a field that no operator's setting reads, would be
        # believed to hold.
        if name.lower().startswith("randquant") and name not in OPERATOR_SETTINGS:
            raise ValueError(
                f"Expected a setting of {', '.join(OPERATOR_SETTINGS)}; got "
                f"{validate.shown(name)}{validate.nearest(name, OPERATOR_SETTINGS)}"
            )
    ledger = ledger_file(config)
    # A directory is there against a malicious server, who could have a step of a sum answered twice
    # at once where no file says that it was answered.
    if ledger is None and "randquant-directory" in config:
        raise ValueError(
            "Expected a file, randquant-ledger, with randquant-directory, got the directory alone: "
            "without a file for its account this client can be made to answer a step of a sum "
            "twice, which can reveal its codes."
        )
    # From another working folder, a relative name is that of a new account, at epsilon 0.
    if ledger is not None and not Path(ledger).is_absolute():
        raise ValueError(
            f"Expected randquant-ledger to be a whole path, such as /var/lib/account, or "
            f"{NO_FILE!r}, got {validate.shown(ledger)}: started in another folder, this client "
            "would begin a new account."
        )


def ledger_file(config: Mapping[str, Any]) -> str | None:
    """Return the path of a client's account, or None if its operator has set none."""
    ledger = config.get("randquant-ledger", NO_FILE)
    return None if ledger == NO_FILE else str(ledger)


def _operator_number(name: str, value: Any, kind: type[int] | type[float]) -> Any:
    try:
        return kind(str(value))  # by its text: int() would take 12.7 and true
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"Expected randquant-{name} to be {wanted}, got {value!r}.") from None


def _check_largest(offer: Offer, terms: HelperTerms) -> None:
    # With a smaller largest code a client would fail if, and only if, one of its codes is larger:
    # whether it answers would reveal something about its data.
    # theory/additive.md, Proposition 10: a proven sum is exact, and so no sum of remainders.
    if terms.largest and offer.sends_remainders:
        raise ProtocolError(
            f"Expected no proofs of remainders modulo {offer.largest + 1}, got terms with them: a "
            "proven sum is exact and reveals more than is counted."
        )
    if terms.largest not in (0, offer.largest):
        raise ProtocolError(
            f"Expected proofs of codes up to {offer.largest}, the offer's largest, or none, got "
            f"terms with {terms.largest}."
        )


def peers_note(terms: Terms | HelperTerms | None, directory: bool) -> str:
    """Return what a client can know of the others in a sum, to end a sentence of its log.

    Its epsilon counts on the noise of these others.

    Args:
        terms: of the sum; None without one.
        directory: True if the client has the public keys of all clients.
    """
    if terms is None:
        return ""
    if not isinstance(terms, Terms) and terms.noise_variance:
        return ""  # its account says on whom it counts
    if not isinstance(terms, Terms):
        return (
            "; it counts on its helper to know all clients in a sum, and not to collude with the "
            "server"
        )
    if not directory:
        return "; without a directory this client cannot know that the other clients exist"
    if terms.neighbours < len(terms.clients) - 1:
        return "; it shares masks with some of the others only, and does not know the rest"
    return "; its directory names all others in this sum"


def _shown(epsilon: float) -> str:
    return "infinity" if math.isinf(epsilon) else round_up(epsilon)


# A client's state in a round, kept between two messages, which may reach different processes.

MEMBERSHIP_RECORD = "randquant.sum"
"""Name of the record of a `Membership` in a client's state, which is never sent. It is on clients'
disks: changing it ends the sums that they are in."""

NEXT_RECORD = "randquant.next-sum"
"""Name of the same record of the next round's sum, which is prepared during this round's."""


@dataclass(frozen=True)
class Membership:
    """A client's state in a round: the offer that it accepted, and its secrets.

    Attributes:
        session: of the round.
        text: of the server's offer; `offer` reads it, and certifies its channel again.
        client: its side of the secure sum; None without secure aggregation.
        commitment: of the server, to its part of the round's seed; empty if there is none.
        part: this client's part of the seed.
        examples: as in `ClientLimits`, whatever the offer says.
        helped: terms of a sum with a helper, which takes one message; None without a helper.
    """

    session: bytes
    text: str
    client: Client | None = None
    commitment: bytes = b""
    part: bytes = b""
    examples: int | None = None
    helped: HelperTerms | None = None

    @property
    def terms(self) -> Terms | HelperTerms | None:
        return self.helped if self.client is None else self.client.terms

    @cached_property
    def offer(self) -> Offer:
        """The server's offer; ProtocolError if the text is not a valid one."""
        try:
            offer = _offer(self.text)
        except ValueError as error:
            raise ProtocolError(
                "Expected an offer of this package's version, with the certificate that its "
                f"channel has, got a text of {len(self.text)} characters that is not one."
            ) from error
        if offer.examples is not None and (self.examples or 0) < offer.examples:
            # The server states its figure for one example by its own number: of this client's
            # examples it would be too small.
            own = "none" if self.examples is None else f"{self.examples}"
            raise ProtocolError(
                "Expected an offer whose guarantee for one example holds for this client, whose "
                f"examples is {own}, got examples={offer.examples}: set examples, and clip_norm, "
                "at the client to the server's numbers."
            )
        try:
            return offer.for_unit(self.examples)
        except ValueError as error:
            raise ProtocolError(
                "Expected an offer that can be counted for one example, as this client counts, got "
                "numbers sent with an update, a survey of clients, or a mechanism for which no "
                "distance of one example is derived."
            ) from error

    def mechanism(self, number: int, proof: bytes) -> UpdateMechanism:
        """Return the offered mechanism with the round's seed.

        Args:
            number: of this client.
            proof: revealed by the server, if the mechanism needs a seed.

        Raises:
            ProtocolError: the proof is not valid.
        """
        if not self.offer.needs_seed:
            return self.offer.mechanism
        # Without a commitment the server could choose the seed, and so the coordinates that it
        # gets, after it has seen the clients' parts.
        if not self.commitment:
            raise ProtocolError(
                "Expected a seed of the coordinates that the server and this client "
                "have drawn together, got no commitment to the server's part."
            )
        seed = check_draw(self.session, self.commitment, number, self.part, proof)
        return self.offer.mechanism.in_round(seed)

    def remember(self, state: State) -> None:
        """Store it for the round's next message, replacing any other round's."""
        fields: dict[str, Any] = {"session": self.session, "offer": self.text}
        if self.client is not None:
            terms = self.client.terms
            fields |= {"terms": terms_text(terms), "dimension": terms.dimension}
            fields["client"] = self.client.to_bytes()
        if self.commitment:
            fields |= {"commitment": self.commitment, "part": self.part}
        # Detects damage, not forgery: anyone who can write this state can compute the checksum.
        fields["checksum"] = _checksum(fields)
        state[MEMBERSHIP_RECORD] = fields

    @staticmethod
    def forget(state: State) -> None:
        # At once, and not at the end of the run: deleted secrets cannot be stolen.
        state.pop(MEMBERSHIP_RECORD, None)

    def check_same(self, state: State) -> None:
        """Raise ProtocolError if this client has agreed to another offer in the same round."""
        for agreed in (state.get(name, {}) for name in (MEMBERSHIP_RECORD, NEXT_RECORD)):
            if agreed.get("session") == self.session and agreed["offer"] != self.text:
                raise ProtocolError("Expected one offer in a round, got a second, different one.")

    @classmethod
    def recall(cls, state: State, session: bytes, files: Mapping[str, Any]) -> Membership:
        """Undo `remember`; ProtocolError if this client has no part in that round."""
        if state.get(NEXT_RECORD, {}).get("session") == session:  # a prepared sum's round begins
            state[MEMBERSHIP_RECORD] = state.pop(NEXT_RECORD)
        saved = dict(state.get(MEMBERSHIP_RECORD, {}))
        checksum = saved.pop("checksum", None)
        if saved and checksum != _checksum(saved):
            raise DamagedFile(
                "Expected this client's state in a sum as it was stored, got another checksum."
            )
        if saved.get("session") != session:
            # Neither session is shown: the other one may be of another server.
            raise ProtocolError(
                "Expected a message of the sum that this client is in, got a message of a "
                "different session."
            )
        client = None
        if "client" in saved:
            terms = read_terms(saved["terms"], session, saved["dimension"], saved["offer"])
            client = Client.from_bytes(terms, saved["client"], *identity(files))
        parts = saved.get("commitment", b""), saved.get("part", b"")
        return cls(session, saved["offer"], client, *parts)


@contextlib.contextmanager
def preparing(state: State, session: bytes) -> Iterator[None]:
    """Set this round's sum aside, and take that of the next round in its place."""
    if state.get(MEMBERSHIP_RECORD, {}).get("session") == session:
        raise ProtocolError("Expected the next round in a session of its own, got this round's.")
    present, prepared = (state.pop(name, None) for name in (MEMBERSHIP_RECORD, NEXT_RECORD))
    if prepared is not None:
        state[MEMBERSHIP_RECORD] = prepared
    try:
        yield
    finally:
        prepared = state.pop(MEMBERSHIP_RECORD, None)
        for name, saved in ((MEMBERSHIP_RECORD, present), (NEXT_RECORD, prepared)):
            if saved is not None:
                state[name] = saved


@functools.lru_cache(maxsize=8)  # certified once for all messages, and clients, of a few rounds
def _offer(text: str) -> Offer:
    from randquant.rounds.offer import Offer

    return Offer.from_text(text)


def _checksum(fields: Mapping[str, object]) -> bytes:
    return hashlib.sha256(repr(sorted(fields.items())).encode()).digest()


def identity(
    files: Mapping[str, Any],
) -> tuple[Ed25519PrivateKey | None, dict[int, bytes] | None]:
    """Read this client's key and all clients' public keys from the files that its operator set.

    Raises:
        DamagedFile: a file is not what it should be.
        OSError: a file cannot be read.
    """
    key = directory = None
    try:
        if "randquant-identity" in files:
            key = load_pem_private_key(Path(str(files["randquant-identity"])).read_bytes(), None)
            if not isinstance(key, Ed25519PrivateKey):
                raise ValueError(
                    f"Expected an Ed25519 key in randquant-identity, got {type(key).__name__}."
                )
        if "randquant-directory" in files:
            directory = _directory(Path(str(files["randquant-directory"])).read_text())
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise DamagedFile(
            f"Expected this client's key and the directory of all clients, but: {error}"
        ) from error
    return key, directory


def _directory(text: str) -> dict[int, bytes]:
    # A number or an identity that is there twice could be read as either client's.
    record = json.loads(text, object_pairs_hook=_once)
    directory = {int(client): bytes.fromhex(public) for client, public in record.items()}
    if list(map(str, directory)) != list(record):
        raise ValueError(f"Expected whole numbers of clients, each once, got {list(record)[:5]}.")
    check_directory(directory)
    return directory


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(record := dict(pairs)) < len(pairs):
        raise ValueError(
            f"Expected each client once, got {len(pairs)} entries for {len(record)} clients."
        )
    return record

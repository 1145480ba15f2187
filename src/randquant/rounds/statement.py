"""The certificate file: what a run releases and the epsilon claimed for it, for others to check.

Its format is `docs/certificate-file.md`. What is written are the terms that clients keep to, and no
distance that follows from them: a verifier derives those itself.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from randquant._internal import validate
from randquant._internal.files import write_atomic
from randquant._internal.imports import __version__
from randquant.channels.channel import Channel
from randquant.mechanisms.noise import Binomial, DiscreteGaussian, DiscreteLaplace, Skellam
from randquant.planning.plans import Plan
from randquant.privacy.accounting.accountant import account, under_other_relation
from randquant.privacy.accounting.sampling import HiddenCohorts, run_release, sampling_rate
from randquant.privacy.guarantee import DEFAULT_DELTA, Guarantee, Neighboring
from randquant.rounds.accountant import RunAccountant
from randquant.statistics.query import Block, Cells, Products, Tree
from randquant.statistics.surveys import Survey
from randquant.statistics.table import Table

FORMAT = "randquant certificate, version 1"

RELEASE_KINDS = (
    "codes", "integer noise", "party noise", "gaussian noise", "table", "party table", "spent",
)  # fmt: skip
"""Kinds of releases that the format has. A mechanism's `certified` names its kind; `spent` is a
guarantee of what was released before."""

LARGEST_TABLE = 4096
"""Most weights of a channel in a file: 80 kB. With twice as many, files of several offers would
come near LARGEST_FILE."""

LARGEST_FILE = 2**20
"""Most bytes of a file; a verifier refuses larger ones before it reads them."""

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReleaseTerms:
    """A mechanism and how one client takes part in its rounds.

    Attributes:
        mechanism: of every round; or the terms of a table.
        dimension: coordinates that are encoded; of no account for a table.
        rounds: in which the client takes part; with `cohorts`, of the run.
        examples: fewest examples whose clipped gradients an update is the mean of; None if updates
            are no such means.
        cohorts: how clients take part, if nobody sees which of them do; None if it is seen.
    """

    mechanism: Any
    dimension: int
    rounds: int
    examples: int | None = None
    cohorts: HiddenCohorts | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """The content of a file: everything that clients are asked for, and what is claimed of it.

    Attributes:
        accounts: for each kind of client, all that it is asked for; a guarantee is of what it was
            asked before.
        claims: guarantees under one trust, each of which holds for each account.
    """

    accounts: Sequence[Sequence[ReleaseTerms | Guarantee]]
    claims: Sequence[Guarantee]

    def text(self) -> str:
        """Return the file's text; equal statements have equal texts.

        Raises:
            ValueError: the format cannot state it.
        """
        # A run may have a guarantee of one example and none of a whole client.
        finite = [each for each in self.claims if math.isfinite(each.epsilon)]
        if not finite or not self.accounts or not all(self.accounts):
            raise ValueError(
                "Expected something released and a finite epsilon to certify, got "
                f"{', '.join(map(str, self.claims)) or 'no guarantee'} of "
                f"{len(self.accounts)} accounts: nothing is protected."
            )
        claims = sorted(map(_claim_fields, finite), key=lambda c: (c["unit"], c["relation"]))
        trust, simulated = _common(finite)
        accounts = [
            sorted((_release_fields(each) for each in terms), key=_canonical)
            for terms in self.accounts
        ]
        fields = {
            "format": FORMAT,
            "made_by": f"randquant {__version__}",
            "trust": trust,
            "simulated": simulated,
            # The noise of all but the client itself, in the sum that counts on most of them.
            "honest_others": max(each["cohort"] for terms in accounts for each in terms) - 1,
            "accounts": sorted(accounts, key=_canonical),
            "claims": claims,
        }
        # Against damage, not forgery: who writes other claims can write their digest.
        digest = hashlib.sha256(_canonical(fields).encode()).hexdigest()
        text = _canonical({**fields, "digest": digest}) + "\n"
        if len(text) > LARGEST_FILE:
            raise ValueError(
                f"Expected a certificate of at most {LARGEST_FILE:,} bytes, got {len(text):,}: "
                "clients have too many different accounts, or channels too many weights."
            )
        return text


def certificate_file(
    value: Any,
    path: str | Path | None = None,
    *,
    dimension: int | None = None,
    rounds: int | None = None,
    delta: float = DEFAULT_DELTA,
    examples: int | None = None,
) -> str:
    """State what is released and the epsilon claimed for it, as a file that others can check.

    A program that shares no code with this package derives distances and epsilon from it again. The
    file has no secret, and nothing that was computed from data.

    Args:
        value: a Run, Plan or Table, a Survey, an account of a run on an engine, or a mechanism for
            whole updates, for which the other arguments say how it is used.
        path: where to write the text; None to only return it.
        dimension: coordinates of an update (of a mechanism).
        rounds: rounds of the client that takes part most often (of a mechanism).
        delta: of the claims (of a mechanism).
        examples: fewest examples whose clipped gradients an update is the mean of, to also claim
            what holds for one example (of a mechanism).

    Returns:
        The text: one line of JSON.

    Guarantees:
        Equal terms and claims give equal texts.

    Raises:
        ValueError: nothing is protected, or the format cannot state it, such as a mechanism of your
            own.
        TypeError: it is none of these values.

    References:
        `docs/certificate-file.md`.

    Example:
        >>> import json, randquant as rq
        >>> channel = rq.stochastic_rounding(clip=0.125, levels=2, margin=0.875)
        >>> one_bit = rq.VectorMechanism(channel, clip_norm=0.5, trust="aggregate", cohort=40)
        >>> text = rq.certificate_file(one_bit, dimension=50, rounds=100)
        >>> round(float.fromhex(json.loads(text)["claims"][0]["epsilon"]), 4)
        7.6451
    """
    if dimension is None and rounds is None and examples is None:
        statement = stated(value)
    else:
        wanted = "a mechanism with dimension, rounds and examples, which other values have"
        validate.answers("value", value, wanted, "record", "certified", "release")
        if dimension is None or rounds is None:
            raise TypeError(
                f"Expected dimension and rounds with a mechanism, got dimension={dimension} and "
                f"rounds={rounds}: say how it is used."
            )
        statement = mechanism_statement(value, dimension, rounds, delta, examples)
    text = statement.text()
    if path is not None:
        write_atomic(Path(path), text.encode())
    return text


def mechanism_statement(
    mechanism: Any, dimension: int, rounds: int, delta: float, examples: int | None = None
) -> Statement:
    """State a mechanism's use in a run, under each unit and relation that is derived."""
    claims = []
    for each in (None, examples) if examples is not None else (None,):

        def released(relation: Neighboring, each: int | None = each) -> Any:
            return run_release(mechanism, dimension, rounds, relation, examples=each)

        if (release := released("replace_one")) is None:
            raise ValueError(f"Expected a mechanism that protects, got {mechanism!r}.")
        stated = account([release], delta)
        claims += [stated, under_other_relation(stated, released)]
    terms = ReleaseTerms(mechanism, dimension, rounds, examples)
    return Statement([[terms]], [each for each in claims if each is not None])


@functools.singledispatch
def stated(value: Any) -> Statement:
    """Return what a value states; rooms to the right register their own values."""
    if isinstance(value, Guarantee):
        raise TypeError(
            f"Expected what has this guarantee, such as a Run, Plan or Table, got {value}: a "
            "number alone does not say what is released."
        )
    raise TypeError(
        "Expected a Run, Plan, Table or Survey, an account of a run, or a mechanism with its "
        f"dimension and rounds, got {validate.shown(value)}."
    )


@stated.register
def _plan_statement(plan: Plan) -> Statement:
    need, hidden = plan.need, plan.need.cohorts
    rounds = need.participations if hidden is None else hidden.rounds
    terms = ReleaseTerms(plan.mechanism, need.dimension, rounds, cohorts=hidden)
    return Statement([[terms]], list(plan.guarantees.values()))


@stated.register
def _table_statement(table: Table) -> Statement:
    return Statement([[ReleaseTerms(table.terms, 0, 1)]], list(table.guarantees.values()))


@stated.register
def _survey_statement(survey: Survey) -> Statement:
    claims = [survey.under("replace_one"), survey.under("zero_out")]
    return Statement([[ReleaseTerms(survey, 0, 1)]], claims)


@stated.register
def _account_statement(accountant: RunAccountant) -> Statement:
    # An account that another one contains costs less: the guarantee is that of the others.
    largest = accountant.largest_accounts()
    accounts = [
        [ReleaseTerms(offer.mechanism, offer.dimension, count, offer.examples)
         for offer, count in each.items()]
        for each in largest
    ]  # fmt: skip
    spent = accountant.get_privacy_spent()
    claims = [spent, accountant.other_relation]
    if spent.unit == "example":
        claims.append(accountant.client_guarantee())
    return Statement(accounts, [each for each in claims if each is not None])


def _claim_fields(guarantee: Guarantee) -> Fields:
    # Where epsilon is 0 no order says anything: 1 + epsilon over the energy is 1.
    order = guarantee.order if 1 < guarantee.order < math.inf else "inf"
    return _plain({**_about(guarantee), "order": order})


def _about(guarantee: Guarantee) -> Fields:
    numbers = {"epsilon": guarantee.epsilon, "delta": guarantee.delta}
    return {"unit": guarantee.unit, "relation": guarantee.neighboring, **numbers}


def _common(claims: Iterable[Guarantee]) -> tuple[str, bool]:
    kinds = {(each.trust, each.simulated) for each in claims}
    if len(kinds) != 1:
        raise ValueError(f"Expected claims under one trust, got {sorted(kinds)}: certify each.")
    return kinds.pop()


def _release_fields(terms: ReleaseTerms | Guarantee) -> Fields:
    if isinstance(terms, Guarantee):
        once = {"rounds": 1, "cohort": 1, "update": None, "examples": None}
        return _plain({"kind": "spent", **once, **_about(terms)})
    cohort, rounds = terms.mechanism.cohort, int(terms.rounds)
    use = {"rounds": rounds, "cohort": cohort, "examples": terms.examples, **_hidden_fields(terms)}
    certified = terms.mechanism.certified(int(terms.dimension))
    # A mechanism of a user's own may invent a kind: better no file than one that nobody can check.
    validate.choice("kind of a release", certified.get("kind"), RELEASE_KINDS)
    return _plain({**use, **certified})


def _hidden_fields(terms: ReleaseTerms) -> Fields:
    if (cohorts := terms.cohorts) is None:
        return {}
    # Other rounds are amplified by their Rényi divergences (theory/sampling.md, Propositions 2 to
    # 12), which no small program derives again; compared with Gaussian noise a round is a pair of
    # mixtures on a line (Propositions 13 to 15).
    one_round = terms.mechanism.release(int(terms.dimension), 1, "replace_one")
    if one_round.squared_mu is None:
        raise ValueError(
            "Expected noise, or one bit a coordinate of whole updates, with hidden cohorts in a "
            f"certificate, got {terms.mechanism!r}: no Gaussian noise that hides as little is "
            "known; certify the rounds of one client."
        )
    rate = sampling_rate(cohorts.cohort, cohorts.population)
    return {"hidden": {"draw": cohorts.draw, "rate": rate}}


def _plain(value: Any) -> Any:
    # As JSON data, in which real numbers are exact texts.
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case float():
            return _exact(value)
        case Channel():
            return _channel_fields(value)
        case Binomial() | DiscreteGaussian() | DiscreteLaplace() | Skellam():
            law, parameter = LAWS[type(value)]
            number = getattr(value, parameter)
            return {"law": law, parameter: number if parameter == "trials" else _exact(number)}
        case [(_, int()), *_] as blocks:
            # Sorted, for their order says nothing.
            return sorted((_block_fields(*each) for each in blocks), key=_canonical)
    return value


LAWS: Mapping[type, tuple[str, str]] = {
    Binomial: ("binomial", "trials"),
    DiscreteGaussian: ("discrete-gaussian", "variance"),
    DiscreteLaplace: ("discrete-laplace", "scale"),
    Skellam: ("skellam", "variance"),
}
"""The name and the parameter of each law in a file."""


def _channel_fields(channel: Channel) -> Fields:
    # Without the values that codes decode to: these are computed from what was released.
    if channel.weights.size > LARGEST_TABLE:
        raise ValueError(
            f"Expected a channel of at most {LARGEST_TABLE} weights in a certificate, got "
            f"{channel.weights.size}: take fewer levels."
        )
    return {
        "inputs": [_exact(x) for x in channel.inputs.tolist()],
        "weights": channel.weights.tolist(),
        "denominator": channel.denominator,
    }


def _block_fields(block: Block, amplitude: int) -> Fields:
    match block:
        case Cells(count):
            fields: Fields = {"encoding": "cells", "cells": count}
        case Tree(count):
            fields = {"encoding": "tree", "cells": count}
        case Products(columns):
            fields = {"encoding": "products", "columns": columns}
        case other:
            raise ValueError(f"Expected a query of randquant in a certificate, got {other!r}.")
    return {**fields, "amplitude": amplitude}


def _exact(value: float) -> str:
    # A negative zero is a zero; denormal numbers have another form, and no setting is one.
    value = float(value) + 0.0
    if 0 < abs(value) < sys.float_info.min:
        raise ValueError(f"Expected numbers of at least 2**-1022 in a certificate, got {value}.")
    return value.hex()


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)

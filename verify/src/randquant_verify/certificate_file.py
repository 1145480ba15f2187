"""Read a certificate file, strictly: what it does not say in exactly one way is refused.

The format is docs/certificate-file.md of randquant, version 1. Every reader below takes a JSON
value and a place (for messages) and returns what the value means: integers, and reals as fractions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

FORMAT = "randquant certificate, version 1"
REAL = re.compile(r"-?0x1\.[0-9a-f]{13}p[+-](0|[1-9][0-9]{0,3})")
OPTIONAL = {"hidden", "counts_on"}
Reader = Callable[[Any, str], Any]


class RefusedError(ValueError):
    """The first step that fails."""


def expect(condition: bool, place: str, expected: object, got: object) -> None:
    if not condition:
        # What a file holds must not look like a line of this program.
        got = ascii(str(got))[1:-1]
        raise RefusedError(f"{place}: expected {expected}, got {got[:60]}")


def whole(low: int, high: int) -> Reader:
    def read(value: Any, place: str) -> int:
        right = type(value) is int and low <= value <= high
        expect(right, place, f"an integer from {low} to {high}", value)
        return value

    return read


def real(low: Fraction | int = 0, high: Fraction | int = 2**1000, above: bool = False) -> Reader:
    """A double in hexadecimal; with `above` it must be larger than `low`."""

    def read(value: Any, place: str) -> Fraction:
        expect(type(value) is str, place, "a real number as text", value)
        if value == "0x0.0p+0":
            number = Fraction(0)
        else:
            expect(REAL.fullmatch(value) is not None, place, "a hexadecimal double", value)
            digits, exponent = value.lstrip("-").split("p")
            expect(-1022 <= int(exponent) <= 1023, place, "a double", value)
            number = int(digits[4:], 16) + (1 << 52)
            number = Fraction(number) * Fraction(2) ** (int(exponent) - 52)
            number = -number if value[0] == "-" else number
        right = low <= number <= high and not (above and number == low)
        expect(right, place, f"{'more than' if above else 'at least'} {low}, at most {high}", value)
        return number

    return read


def one_of(*choices: Any) -> Reader:
    def read(value: Any, place: str) -> Any:
        right = any(type(value) is type(choice) and value == choice for choice in choices)
        expect(right, place, f"one of {choices}", value)
        return value

    return read


def text(value: Any, place: str) -> str:
    expect(type(value) is str and len(value) <= 100, place, "a short text", value)
    return value


def list_of(read_entry: Reader, least: int = 1, most: int = 4096) -> Reader:
    def read(value: Any, place: str) -> list[Any]:
        right = type(value) is list and least <= len(value) <= most
        expect(right, place, f"a list of {least} to {most}", value)
        return [read_entry(entry, f"{place}[{k}]") for k, entry in enumerate(value)]

    return read


def record(**readers: Reader) -> Reader:
    """An object with these fields and no others; those of OPTIONAL alone may be left out."""

    def read(value: Any, place: str) -> SimpleNamespace:
        expect(type(value) is dict, place, "an object", value)
        missing = readers.keys() - value.keys() - OPTIONAL | value.keys() - readers.keys()
        expect(not missing, place, f"the fields {sorted(readers)}", sorted(value))
        fields = {k: read(value[k], f"{place}.{k}") for k, read in readers.items() if k in value}
        return SimpleNamespace(**{**dict.fromkeys(OPTIONAL), **fields})

    return read


def variant(key: str, kinds: dict[str, dict[str, Reader]], **shared: Reader) -> Reader:
    """An object whose field `key` says which fields it has beside the shared ones."""
    records = {kind: record(**{key: text}, **shared, **fields) for kind, fields in kinds.items()}

    def read(value: Any, place: str) -> SimpleNamespace:
        there = type(value) is dict and key in value
        expect(there, place, f"an object with {key}", value)
        return records[one_of(*records)(value[key], f"{place}.{key}")](value, place)

    return read


def optional(read_value: Reader) -> Reader:
    return lambda value, place: None if value is None else read_value(value, place)


UPDATE = record(
    clip=one_of("norm", "coordinates"),
    threshold=real(Fraction(1, 10**30), 10**30),
    dimension=whole(1, 2**40),
    rotated=whole(1, 2**40),
    sent=whole(1, 2**40),
)
CHANNEL = record(
    inputs=list_of(real(-(10**30), 10**30), 2),
    weights=list_of(list_of(whole(0, 2**62), 2), 2),
    denominator=whole(2, 2**62),
)
WIDTH = {"variance": real(Fraction(1, 4), 2**30)}
PARTY = variant("law", {"discrete-gaussian": WIDTH})
SHARES = {
    "skellam": {"variance": real(Fraction(1, 1000), 2**30)},
    "discrete-gaussian": WIDTH,
    "binomial": {"trials": whole(2, 2**32)},
}
SHARE = variant("law", SHARES)
ANY_SHARE = variant("law", {**SHARES, "discrete-laplace": {"scale": real(Fraction(1, 8), 2**15)}})
BLOCKS = {
    "cells": {"cells": whole(1, 2**40)},
    "tree": {"cells": whole(2, 2**40)},
    "products": {"columns": whole(1, 2**20)},
}
BLOCK = variant("encoding", BLOCKS, amplitude=whole(1, 2**40))
HIDDEN = record(draw=one_of("poisson", "fixed"), rate=real(0, 1, above=True))
GRID = record(scale=real(above=True), bound=whole(0, 2**128))
GUARANTEE = {
    "unit": one_of("client", "example"),
    "relation": one_of("replace_one", "zero_out"),
    "epsilon": real(),
    "delta": real(0, 1 - Fraction(1, 2**60)),
}
COUNTS_ON = record(cohort=whole(1, 10**6), parties=one_of([], ["helper"], ["helper", "server"]))
PARTIES = one_of(["helper"], ["helper", "server"])
TABLE = {"most": whole(1, 2**40), "blocks": list_of(BLOCK)}
KINDS = {
    "codes": {"channel": CHANNEL, "hidden": HIDDEN},
    "integer noise": {"grid": GRID, "noise": SHARE, "hidden": HIDDEN},
    "party noise": {"grid": GRID, "noise": PARTY, "parties": PARTIES, "hidden": HIDDEN},
    "gaussian noise": {"noise_in_clip_norms": real(above=True), "hidden": HIDDEN},
    "table": {"noise": ANY_SHARE, **TABLE},
    "party table": {"noise": PARTY, "parties": PARTIES, **TABLE},
    "spent": {"counts_on": COUNTS_ON, **GUARANTEE},
}
RELEASE = variant(
    "kind",
    KINDS,
    rounds=whole(0, 2**53),
    cohort=whole(1, 10**6),
    update=optional(UPDATE),
    examples=optional(whole(1, 10**9)),
)
CLAIM = record(
    **GUARANTEE,
    order=lambda value, place: value if value == "inf" else real(1, above=True)(value, place),
)
TRUSTS = {
    "codes": ("local", "aggregate", "model"),
    "integer noise": ("aggregate", "model"),
    "party noise": ("aggregate", "model"),
    "gaussian noise": ("central", "local", "model"),
    "table": ("local", "aggregate", "central"),
    "party table": ("aggregate",),
    "spent": ("local", "aggregate", "central", "model"),
}
FILE = record(
    format=one_of(FORMAT),
    made_by=text,
    trust=one_of("local", "aggregate", "central", "model"),
    simulated=one_of(True, False),
    honest_others=whole(0, 10**6),
    accounts=list_of(list_of(RELEASE, 0, 256), 1, 256),
    claims=list_of(CLAIM, 1, 4),
    digest=text,
)


def canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n"


def read_certificate(content: bytes) -> SimpleNamespace:
    """The certificate in a file's bytes; raises RefusedError with the first rule that is broken."""
    try:
        return read_bytes(content)
    except RecursionError:
        raise RefusedError("file: expected a few levels of lists and objects, got more") from None


def read_bytes(content: bytes) -> SimpleNamespace:
    expect(len(content) <= 2**20, "file", "at most 1 MiB", f"{len(content)} bytes")
    try:
        data = json.loads(content.decode("ascii"))
    except ValueError as error:
        raise RefusedError(f"file: expected JSON in ASCII: {error}") from None
    # Repeated keys, other orders, spaces, and other ways to write a number are all seen here.
    rule = "the canonical text: sorted keys, no repeated key, no white space, one final newline"
    expect(canonical(data).encode() == content, "file", rule, "another text")
    certificate = FILE(data, "certificate")
    del data["digest"]
    digest = hashlib.sha256(canonical(data)[:-1].encode()).hexdigest()
    expect(certificate.digest == digest, "digest", digest, certificate.digest)
    check_consistency(certificate)
    return certificate


def check_consistency(certificate: SimpleNamespace) -> None:
    """What fields must have to do with each other."""
    kinds = [(claim.unit, claim.relation) for claim in certificate.claims]
    expect(kinds == sorted(set(kinds)), "claims", "each kind once, sorted", kinds)
    for account in certificate.accounts:
        for release in account:
            check_release(release, certificate.trust)
            by_example = release.update is None or release.examples is not None
            right = by_example or all(unit == "client" for unit, _ in kinds)
            expect(right, "examples", "a number, as a claim is for one example", None)
        others = [release for release in account if release.kind != "spent"]
        expect(bool(others or not account), "account", "more than what was spent", "nothing else")
        alone = len(others) == 1 or not any(release.hidden for release in others)
        expect(alone, "hidden", "no other release but what was spent", len(others))
    releases = [release for account in certificate.accounts for release in account]
    spent = [release.counts_on for release in releases if release.counts_on]
    others = max([1, *(counted.cohort for counted in (*releases, *spent))]) - 1
    expect(certificate.honest_others == others, "honest_others", others, certificate.honest_others)


def check_release(release: SimpleNamespace, trust: str) -> None:
    kind, update, hidden = release.kind, release.update, release.hidden
    summed = trust in ("aggregate", "model")
    if release.counts_on:
        alone = release.counts_on.cohort == 1 and not release.counts_on.parties
        expect(summed or alone, "counts_on", f"nobody under {trust} trust", "others")
    summed &= kind not in ("gaussian noise", "party noise", "party table")
    expect(release.cohort == 1 or summed, "cohort", f"1 of {kind}, {trust} trust", release.cohort)
    expect(trust in TRUSTS[kind], "trust", f"one of {TRUSTS[kind]} with {kind}", trust)
    none = kind in ("table", "party table", "spent")
    expect((update is None) == none, "update", "null of tables and what was spent alone", update)
    if none or hidden:
        expect(release.examples is None, "examples", "null", release.examples)
    if kind == "spent":
        expect(release.rounds == release.cohort == 1, "spent", "rounds and cohort 1", "more")
    if trust == "model":
        expect(kind == "spent" or hidden is not None, "hidden", "a draw under model trust", None)
    if hidden and hidden.draw == "fixed":
        expect(trust in ("central", "model"), "trust", "central or model with fixed cohorts", trust)
    if update is None:
        return
    rotated = update.dimension
    if update.clip == "norm" and kind != "gaussian noise":
        rotated = 1 << (update.dimension - 1).bit_length()
    expect(update.rotated == rotated, "rotated", rotated, update.rotated)
    expect(update.sent <= rotated, "sent", f"at most {rotated}", update.sent)
    if update.clip == "coordinates":
        expect(update.sent == rotated, "sent", rotated, update.sent)
        expect(kind in ("codes", "gaussian noise"), "clip", "norm", update.clip)
        expect(release.examples is None, "examples", "null", release.examples)
    if kind == "codes":
        check_channel(release.channel, update)


def check_channel(channel: SimpleNamespace, update: SimpleNamespace) -> None:
    inputs, weights = channel.inputs, channel.weights
    right = inputs == sorted(inputs) and inputs[0] == -inputs[-1] < inputs[1]
    right &= inputs[-2] < inputs[-1] and all(
        a < c for a, c in zip(inputs, inputs[2:], strict=False)
    )
    expect(right, "inputs", "-c to c in order, inner ones at most twice", inputs)
    expect(len(weights) == len(inputs), "weights", f"{len(inputs)} rows", len(weights))
    same = len({len(row) for row in weights}) == 1 and len(weights) * len(weights[0]) <= 4096
    expect(same, "weights", "equally long rows, 4096 weights at most", len(weights))
    denominator = channel.denominator
    expect(denominator.bit_count() == 1, "denominator", "a power of two", denominator)
    expect(
        {sum(row) for row in weights} == {denominator}, "weights", f"sums {denominator}", "other"
    )
    right = update.clip == "norm" or update.threshold == inputs[-1]
    expect(right, "inputs", f"threshold {update.threshold} as the last", inputs[-1])

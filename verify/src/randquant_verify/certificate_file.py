"""Read a certificate file, strictly: what it does not say in exactly one way is refused.

The format is docs/certificate-file.md of randquant, version 1. Every reader below takes a JSON value
and a place (for messages) and returns what the value means: integers, and reals as fractions.
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
Reader = Callable[[Any, str], Any]


class RefusedError(ValueError):
    """The first step that fails."""


def expect(condition: bool, place: str, expected: str, got: object) -> None:
    if not condition:
        raise RefusedError(f"{place}: expected {expected}, got {str(got)[:60]}")


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
    """An object with these fields and no others."""

    def read(value: Any, place: str) -> SimpleNamespace:
        expect(type(value) is dict, place, "an object", value)
        expect(
            value.keys() == readers.keys(), place, f"the fields {sorted(readers)}", sorted(value)
        )
        return SimpleNamespace(**{k: read(value[k], f"{place}.{k}") for k, read in readers.items()})

    return read


def variant(key: str, shared: dict[str, Reader], **kinds: dict[str, Reader]) -> Reader:
    """An object whose field `key` says which fields it has; `_` in names stands for a space or -."""
    readers = {
        re.sub("_", "-" if key == "law" else " ", name): fields for name, fields in kinds.items()
    }

    def read(value: Any, place: str) -> SimpleNamespace:
        expect(type(value) is dict and key in value, place, f"an object with {key}", value)
        kind = one_of(*readers)(value[key], f"{place}.{key}")
        return record(**{key: text}, **shared, **readers[kind])(value, place)

    return read


def optional(read_value: Reader) -> Reader:
    return lambda value, place: None if value is None else read_value(value, place)


COUNT = whole(0, 2**53)
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
NOISE = variant(
    "law",
    {},
    skellam={"variance": real(Fraction(1, 1000), 2**30)},
    discrete_gaussian={"variance": real(Fraction(1, 4), 2**30)},
    binomial={"trials": whole(2, 2**32)},
    discrete_laplace={"scale": real(Fraction(1, 8), 2**15)},
)
AMPLITUDE = {"amplitude": whole(1, 2**40)}
BLOCK = variant(
    "encoding",
    AMPLITUDE,
    cells={"cells": whole(1, 2**40)},
    tree={"cells": whole(2, 2**40)},
    products={"columns": whole(1, 2**20)},
)
RELEASE = variant(
    "kind",
    {
        "rounds": COUNT,
        "cohort": whole(1, 10**6),
        "update": optional(UPDATE),
        "examples": optional(whole(1, 10**9)),
    },
    codes={"channel": CHANNEL},
    integer_noise={
        "grid": record(scale=real(above=True), bound=whole(0, 2**128)),
        "noise": NOISE,
    },
    gaussian_noise={"noise_multiplier": real(above=True)},
    table={"noise": NOISE, "most": whole(1, 2**40), "blocks": list_of(BLOCK)},
)
CLAIM = record(
    unit=one_of("client", "example"),
    relation=one_of("replace_one", "zero_out"),
    epsilon=real(0, 10**9),
    delta=real(),
    order=lambda value, place: value if value == "inf" else real(1, above=True)(value, place),
)
FILE = record(
    format=one_of(FORMAT),
    made_by=text,
    trust=one_of("local", "aggregate", "central"),
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
    expect(len(content) <= 2**20, "file", "at most 1 MiB", f"{len(content)} bytes")
    try:
        data = json.loads(content.decode("ascii"))
    except (ValueError, RecursionError) as error:
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
    for k, claim in enumerate(certificate.claims):
        expect(claim.delta < 1, f"claims[{k}].delta", "less than 1", claim.delta)
    cohorts = [1]
    for a, account in enumerate(certificate.accounts):
        for r, release in enumerate(account):
            place = f"accounts[{a}][{r}]"
            check_release(release, place, certificate.trust)
            cohorts.append(release.cohort)
            by_example = release.kind == "table" or release.examples is not None
            right = by_example or all(unit == "client" for unit, _ in kinds)
            expect(right, f"{place}.examples", "a number, as a claim is for one example", None)
    others = max(cohorts) - 1
    expect(certificate.honest_others == others, "honest_others", others, certificate.honest_others)


def check_release(release: SimpleNamespace, place: str, trust: str) -> None:
    right = release.cohort == 1 or trust == "aggregate"
    expect(right, f"{place}.cohort", f"1 under {trust} trust", release.cohort)
    trusts = {"codes": ("local", "aggregate"), "integer noise": ("aggregate",)}
    trusts |= {"gaussian noise": ("central", "local"), "table": ("local", "aggregate", "central")}
    expect(trust in trusts[release.kind], f"{place}.kind", f"none of {trust} trust", release.kind)
    is_table = release.kind == "table"
    expect((release.update is None) == is_table, f"{place}.update", "null of tables alone", "")
    if is_table:
        expect(release.examples is None, f"{place}.examples", "null", release.examples)
        return
    update = release.update
    if update.clip == "norm" and release.kind != "gaussian noise":
        rotated = 1 << (update.dimension - 1).bit_length()
    else:
        rotated = update.dimension
    expect(update.rotated == rotated, f"{place}.update.rotated", rotated, update.rotated)
    expect(update.sent <= rotated, f"{place}.update.sent", f"at most {rotated}", update.sent)
    if update.clip == "coordinates":
        expect(update.sent == rotated, f"{place}.update.sent", rotated, update.sent)
        expect(release.kind != "integer noise", f"{place}.update.clip", "norm", update.clip)
        expect(release.examples is None, f"{place}.examples", "null", release.examples)
    if release.kind == "codes":
        check_channel(release, f"{place}.channel")
    if release.kind == "integer noise":
        expect(release.noise.law != "discrete-laplace", f"{place}.noise", "another law", "Laplace")


def check_channel(release: SimpleNamespace, place: str) -> None:
    channel = release.channel
    inputs, weights = channel.inputs, channel.weights
    expect(inputs == sorted(inputs), f"{place}.inputs", "inputs that do not decrease", inputs)
    right = inputs[-1] > 0 and inputs[0] == -inputs[-1] and inputs[0] < inputs[1]
    expect(right and inputs[-2] < inputs[-1], f"{place}.inputs", "-c to c", inputs)
    thrice = any(a == c for a, c in zip(inputs, inputs[2:], strict=False))
    expect(not thrice, f"{place}.inputs", "an input at most twice", inputs)
    expect(len(weights) == len(inputs), f"{place}.weights", f"{len(inputs)} rows", len(weights))
    same = len({len(row) for row in weights}) == 1 and len(weights) * len(weights[0]) <= 4096
    expect(same, f"{place}.weights", "equally long rows, 4096 weights at most", len(weights))
    power_of_two = channel.denominator & (channel.denominator - 1) == 0
    expect(power_of_two, f"{place}.denominator", "a power of two", channel.denominator)
    for k, row in enumerate(weights):
        expect(sum(row) == channel.denominator, f"{place}.weights[{k}]", "the sum", sum(row))
    if release.update.clip == "coordinates":
        c = release.update.threshold
        expect(c == inputs[-1], f"{place}.inputs", f"threshold {c} as the last", inputs[-1])

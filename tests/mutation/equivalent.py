"""Mechanical mutants that were looked at and that nobody can notice."""

EQUIVALENT_LINES: list[tuple[str, str, str, str]] = [
    (
        "channels/keys.py",
        "_ZEROS = memoryview(bytes(1 << 17))"
        "  # plaintext whose encryption is the cipher's key stream",
        "_ZEROS = memoryview(bytes(1 << 16))"
        "  # plaintext whose encryption is the cipher's key stream",
        "how many bytes of the stream are read at a time: the cipher goes on where it stopped",
    ),
    (
        "channels/wire/payload.py",
        "if channel.bits > 8 or channel.levels < 1 << channel.bits:",
        "if channel.bits > 8 or channel.levels < 2 << channel.bits:",
        "codes of which every bit pattern is one are checked too before they are added: none fails",
    ),
    (
        "aggregation/secagg/terms.py",
        "@functools.lru_cache(maxsize=16)",
        "",
        "computed again each time: slower, and the same",
    ),
    (
        "aggregation/secagg/terms.py",
        "@functools.lru_cache(maxsize=2048)",
        "",
        "computed again each time: slower, and the same",
    ),
    (
        "aggregation/secagg/terms.py",
        "@functools.lru_cache(maxsize=16)",
        "@functools.lru_cache(maxsize= 17)",
        "what is kept for the next time: the same is computed",
    ),
    (
        "aggregation/coordinate.py",
        "@functools.lru_cache(maxsize=64)",
        "",
        "computed again each time: slower, and the same",
    ),
    (
        "aggregation/coordinate.py",
        "@final",
        "",
        "read by type checkers only",
    ),
    (
        "aggregation/coordinate.py",
        "@dataclass(frozen=True, slots=True)",
        "@dataclass(frozen=True, slots=False)",
        "how an object is stored: frozen, it takes no other attribute with slots or without",
    ),
    (
        "aggregation/coordinate.py",
        "return encode_payload(self.channel, update, key, threads=1)  # clients may share a machine",
        "return encode_payload(self.channel, update, key, threads= 2)  # clients may share a machine",
        "speed only: payloads do not depend on the number of threads",
    ),
    (
        "aggregation/secagg/client.py",
        "dict(zip(neighbours, sharing.split(secret, terms.threshold, places), strict=True))",
        "dict(zip(neighbours, sharing.split(secret, terms.threshold, places), strict=False))",
        "there is one share a place, and one place a neighbour, always",
    ),
    (
        "aggregation/secagg/client.py",
        "if len(message) != 2 * POINT_BYTES + SEALED_BYTES:",
        "if len(message) > 2 * POINT_BYTES + SEALED_BYTES:",
        "a shorter message does not unseal, or to numbers that are too short: the sender is accused as well",
    ),
    (
        "integrations/flower/mod.py",
        "if head.step == messages.SHARE:",
        "if head.step >= messages.SHARE:",
        "only share, confirm and reveal come here, and share is the last of them in the alphabet",
    ),
    (
        "integrations/flower/mod.py",
        "@dataclass(frozen=True, slots=True)",
        "@dataclass(frozen=True, slots=False)",
        "how an object is stored: frozen, it takes no other attribute with slots or without",
    ),
    (
        "privacy/guarantee.py",
        "@dataclass(frozen=True, slots=True)",
        "@dataclass(frozen=True, slots=False)",
        "how an object is stored: frozen, it takes no other attribute with slots or without",
    ),
    (
        "privacy/guarantee.py",
        "return value * (1 + 8 * 2.0**-53)",
        "return value * (1 + 9 * 2.0**-53)",
        "1 + 9 · 2**-53 is a tie between floats and rounds to 1 + 8 · 2**-53",
    ),
    (
        "privacy/certificates/metric.py",
        "@dataclass(frozen=True, slots=True)",
        "@dataclass(frozen=True, slots=False)",
        "how an object is stored: frozen, it takes no other attribute with slots or without",
    ),
    (
        "privacy/certificates/metric.py",
        "best = (-1.0, 0.0, 0, 0)",
        "best = (-1.0, 0.0, 1, 0)",
        "every candidate is at least 0 and takes the place of the first",
    ),
    (
        "privacy/certificates/metric.py",
        "best = (-1.0, 0.0, 0, 0)",
        "best = (- 0.0, 0.0, 0, 0)",
        "a candidate of 0 with a later vertex is larger: there are two vertices at least",
    ),
    (
        "privacy/accounting/releases.py",
        "@dataclass(frozen=True, slots=True)",
        "@dataclass(frozen=True, slots=False)",
        "how an object is stored: frozen, it takes no other attribute with slots or without",
    ),
    (
        "privacy/accounting/releases.py",
        "@functools.lru_cache(maxsize=256)",
        "",
        "computed again each time: slower, and the same",
    ),
    (
        "privacy/accounting/releases.py",
        "LADDER = (2.0, 16.0, 128.0, 1024.0)",
        "LADDER = ( 3.0, 16.0, 128.0, 1024.0)",
        "kappa grows with the order (theory/vector.md, Proposition 9): what is skipped is not the least",
    ),
    (
        "privacy/certificates/coordinate.py",
        "@dataclass(frozen=True, slots=True)",
        "@dataclass(frozen=True, slots=False)",
        "how an object is stored: frozen, it takes no other attribute with slots or without",
    ),
    (
        "privacy/certificates/coordinate.py",
        "upper_bound = 0.0",
        "upper_bound = -1.0",
        "the upper end of a divergence is never below 0",
    ),
    (
        "privacy/certificates/coordinate.py",
        "best = (-1.0, 0, 0)",
        "best = (- 2.0, 0, 0)",
        "the lower end of a divergence is never below 0, and takes the place of either",
    ),
    (
        "privacy/certificates/coordinate.py",
        'if neighboring == "zero_out":',
        'if neighboring >= "zero_out":',
        "of the two relations that are accepted, zero_out is the last in the alphabet",
    ),
    (
        "privacy/certificates/coordinate.py",
        "lower, upper = (np.stack(side) for side in zip(*pairs, strict=True))",
        "lower, upper = (np.stack(side) for side in zip(*pairs, strict=False))",
        "both are pairs of a lower and an upper end",
    ),
    (
        "privacy/certificates/coordinate.py",
        "(math.inf if b == 0 else int(a) / int(b)) if a > 0 else -1.0",
        "(math.inf if b == 0 else int(a) / int(b)) if a > 0 else not 1.0",
        "0 in place of -1, among ratios of which the largest is above 0",
    ),
    (
        "privacy/certificates/coordinate.py",
        "(math.inf if b == 0 else int(a) / int(b)) if a > 0 else -1.0",
        "(math.inf if b <= 0 else int(a) / int(b)) if a > 0 else -1.0",
        "weights are not negative",
    ),
]
"""(file, line before, line after, why): stripped lines, as the runner prints them."""

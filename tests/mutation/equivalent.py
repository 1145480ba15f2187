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
]
"""(file, line before, line after, why): stripped lines, as the runner prints them."""

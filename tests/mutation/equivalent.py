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

"""Faults in what bounds a whole run at once: Gaussian releases, and the martingale of others."""

GAUSSIAN = "privacy/accounting/gaussian.py"

MUTANTS = [
    (
        GAUSSIAN,
        "rounds / multiplier**2",
        "rounds / multiplier",
        "the multiplier is not squared",
        (),
    ),
    (
        GAUSSIAN,
        "value + 2 * SPECIAL * left",
        "value - 2 * SPECIAL * left",
        "special functions are trusted to the last digit",
        (),
    ),
    (
        GAUSSIAN,
        "log - threshold**2 / 2 + 16",
        "log - threshold**2 + 16",
        "half of the exponent",
        (),
    ),
    (
        GAUSSIAN,
        "mu * (high + mu / 2)",
        "mu * high",
        "the threshold is that of no drift",
        (),
    ),
    (
        "privacy/accounting/accountant.py",
        "if len(squares) < len(releases):",
        "if not squares:",
        "what is not Gaussian is left out beside what is",
        ("tests/privacy/test_gaussian.py",),
    ),
]

EQUIVALENT = []

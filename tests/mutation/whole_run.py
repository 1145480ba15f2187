"""Faults in what bounds a whole run at once: Gaussian releases, and the martingale of others."""

GAUSSIAN = "privacy/accounting/gaussian.py"

MUTANTS = [
    (
        "privacy/accounting/releases.py",
        "self.rounds / self.noise_multiplier**2)",
        "self.rounds / self.noise_multiplier)",
        "the multiplier is not squared",
        ("tests/privacy/test_gaussian.py",),
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
        GAUSSIAN,
        "-math.log1p(2 * math.expm1(-curvature / 2))",
        "curvature * 1.0",
        "integer noise is taken for Gaussian noise of its curvature",
        (),
    ),
    (
        "privacy/accounting/releases.py",
        "self.rounds * self.squared_distance * step)",
        "self.squared_distance * step)",
        "integer noise of one round",
        ("tests/privacy/test_gaussian.py",),
    ),
    (
        "privacy/accounting/accountant.py",
        "if len(known) < len(squares):",
        "if not known:",
        "what is not Gaussian is left out beside what is",
        ("tests/privacy/test_gaussian.py",),
    ),
]

EQUIVALENT = []

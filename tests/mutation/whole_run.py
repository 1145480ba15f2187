"""Faults in what bounds a whole run at once: Gaussian releases, and the martingale of others."""

GAUSSIAN = "privacy/accounting/gaussian.py"
STEPS = "privacy/accounting/martingale.py"
RATIOS = "privacy/accounting/ratios.py"

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
        STEPS,
        "(min(moments.skew, third) / share + x**3 / log) * SLACK,",
        "0.0,",
        "third moment dropped",
        (),
    ),
    (
        STEPS,
        "fourth = moments.excess * longest**2 / share",
        "fourth = 0.0 * longest**2 / share",
        "fourth moment dropped",
        (),
    ),
    (
        STEPS,
        "moment * longest**4 / share + _lognormal(6, power, x) / log",
        "0.0 * moment * power * longest",
        "remainder dropped",
        (),
    ),
    (
        STEPS,
        "whole = steps.energy + smoothing",
        "whole = steps.energy",
        "smoothing costs nothing",
        (),
    ),
    (
        STEPS,
        "_errors(moments, tilt, smoothing - steps.largest, whole - steps.largest)",
        "_errors(moments, tilt, smoothing, whole)",
        "errors at the beginning of each step",
        (),
    ),
    (
        STEPS,
        "shift = 2 + tilt - k",
        "shift = 3 + tilt - k",
        "derivatives of another tilt",
        (),
    ),
    (
        STEPS,
        "max(part.largest for part in parts)",
        "min(part.largest for part in parts)",
        "the largest step of the gentlest release",
        (),
    ),
    (
        STEPS,
        "kappa_sum(channel, clients, 2.0).upper",
        "kappa_sum(channel, clients, 1.5).upper",
        "kappa of the wrong order",
        (),
    ),
    (
        RATIOS,
        "q, p = (a, b) if end == 0 else (b, a)",
        "q, p = (a, b)",
        "the other direction is forgotten",
        (),
    ),
    (
        RATIOS,
        "(at_ends.max(axis=1) + moves / 2).max()",
        "at_ends.max()",
        "excess between the ends is forgotten",
        (),
    ),
    (
        RATIOS,
        "            right * (most * right - low),\n",
        "",
        "skewness of one sign only",
        (),
    ),
    (
        RATIOS,
        "count = (clients + 1) // 2 if mirrored else clients",
        "count = (clients + 1) // 2",
        "half of the arrangements of a channel that is no mirror image",
        (),
    ),
    (
        "privacy/accounting/accountant.py",
        "        if part is None:\n            return math.inf, math.inf, 0.0\n",
        "        if part is None:\n            continue\n",
        "what is not Gaussian is left out beside what is",
        ("tests/privacy/test_gaussian.py",),
    ),
]

EQUIVALENT = []

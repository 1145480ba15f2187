"""Faults in certificates, divergences, composition, sampling and accounting of a run."""

MUTANTS = [
    (
        "amplification.py",
        "rest = [_remainder(curve, 1 + rate * order), _remainder(curve, rate * (order + 1))]",
        "rest = [_remainder(curve, 1 + rate * order)]",
        "second remainder dropped",
        (),
    ),
]

EQUIVALENT = []

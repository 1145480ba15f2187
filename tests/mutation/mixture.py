"""Faults in the accounting for hidden cohorts with Gaussian noise."""

HERE = ("tests/privacy/test_mixture.py",)

MUTANTS = [
    (
        "privacy/accounting/composition/mixture.py",
        "return cls(rate, ((there, back), (back, there)))",
        "return cls(rate, ((there, back),))",
        "one direction forgotten",
        HERE,
    ),
    (
        "privacy/accounting/composition/mixture.py",
        "return cls(rate, ((there, back), (back, there)))",
        "return cls(rate, ((back, there),))",
        "only the other direction",
        HERE,
    ),
    (
        "privacy/accounting/sampled.py",
        "Mixture.of_absence(self.rate, apart)",
        "Mixture.of_absence(self.rate**2, apart)",
        "rate squared",
        HERE,
    ),
    (
        "privacy/accounting/composition/mixture.py",
        "masses = np.append(inside * (1 - part), 0.0) + np.append(0.0, inside * part)",
        "masses = np.append(inside, 0.0)",
        "positive losses rounded down",
        HERE,
    ),
    (
        "privacy/accounting/composition/mixture.py",
        "np.append(inside * part, float(tail[-1])) + np.append(0.0, inside * (1 - part))",
        "np.append(0.0, inside) + np.append(np.zeros(CELLS), float(tail[-1]))",
        "negative losses rounded down",
        HERE,
    ),
    (
        "privacy/accounting/composition/mixture.py",
        "return np.maximum(top, 0.0), masses, float(tail[-1]) + 1e-300",
        "return np.maximum(top, 0.0), masses, 0.0",
        "truncation dropped",
        HERE,
    ),
    (
        "privacy/accounting/composition/mixture.py",
        "for weight, away in ((1 - rate, x), (rate, x - shift)):",
        "for weight, away in ((1 - rate, x), (rate, x + shift)):",
        "tail shifted the wrong way",
        HERE,
    ),
    (
        "privacy/accounting/composition/mixture.py",
        "steepest = np.maximum((-n if n <= 0 else 2 * n) - x[:-1], 0.0)",
        "steepest = np.full(CELLS, -1e3)",
        "shares too low",
        HERE,
    ),
    (
        "privacy/accounting/composition/mixture.py",
        "max(1.0 - float(gained.sum()) - rest - float(pained.sum()), 0.0) + error",
        "0.0",
        "nothing left at zero",
        HERE,
    ),
    (
        "privacy/accounting/composition/rule.py",
        "return max(_attacked(loss, parts, delta) for loss in worlds.losses(parts, delta))",
        "return min(_attacked(loss, parts, delta) for loss in worlds.losses(parts, delta))",
        "the easier direction counts",
        HERE,
    ),
    (
        "privacy/accounting/composition/rule.py",
        "(_epsilon(loss, parts, delta, tilt), 1 + tilt) for",
        "(_epsilon(loss, max(parts - 1, 1), delta, tilt), 1 + tilt) for",
        "a round forgotten",
        HERE,
    ),
    (
        "privacy/accounting/sampled.py",
        "if gaussian and away is not None and away < apart:",
        "if gaussian and away is not None:",
        "absence farther away than anybody is taken to be between the two",
        HERE,
    ),
    (
        "privacy/accounting/sampled.py",
        "if gaussian and away is not None and away < apart:",
        "if away is not None and away < apart:",
        "three laws that are dominated in pairs are taken for shifts of one noise",
        HERE,
    ),
    (
        "privacy/accounting/sampled.py",
        "Mixture.of_exchange(self.rate, (apart, 0.0))",
        "Mixture.of_exchange(self.rate, (apart / 2, -apart / 2))",
        "absence taken to be in the middle",
        HERE,
    ),
    (
        "privacy/accounting/accountant.py",
        "(first, sum(each[1] for each in known if each))",
        "(first, known[0] and known[0][1])",
        "only the rounds of the first release",
        HERE,
    ),
    (
        "privacy/accounting/accountant.py",
        "(None, 0) if others else",
        "(None, 0) if False else",
        "worlds of one release for all",
        HERE,
    ),
]

EQUIVALENT = []

"""Faults in lower ends: a figure above what an attack reaches, or an attack that nobody can run."""

ATTACKS = ("tests/privacy/test_hidden_attacks.py",)
HIDDEN = "privacy/accounting/hidden_attacks.py"
ROUNDS = "privacy/accounting/rounds.py"
LAWS = "mechanisms/noise/laws.py"

MUTANTS = [
    (HIDDEN, "once = np.maximum(sums, 0.0)", "once = np.maximum(sums, 0.0) * 0 + 1.0",
     "the rounds of the client are forgotten", ATTACKS),
    (HIDDEN, "sums, added = powered(one, np.arange(SIZE), 0, SIZE, more + 1, once)",
     "sums, added = powered(one, np.arange(SIZE), 0, SIZE, more, once)",
     "one round fewer without the client", ATTACKS),
    (HIDDEN, "surely, most = one - off, np.maximum(other, 0.0) + other_off",
     "surely, most = one + off, np.maximum(other, 0.0)", "errors of sums in favour of the attack",
     ATTACKS),
    (HIDDEN, "(1 - self.rate) * laws.absent + self.rate * law for law in",
     "law for law in", "the client takes part in every round", ATTACKS),
    (ROUNDS, "-1.0 if stand_in else 0.0),)", "-1.0),)",
     "an absent client has an opposite update where it has zeros", ATTACKS),
    (ROUNDS, "share = participations / math.sqrt(total) * (1 - 8 * UNIT)",
     "share = math.sqrt(participations)", "the sum of all rounds has the noise of a few", ATTACKS),
    (ROUNDS, "total = 2 * float(mass.sum()) - 1 + beyond", "total = 2 * float(mass.sum())",
     "the middle is counted twice", ATTACKS),
    (ROUNDS, "others = _added(channel, seen.others, (seen.clients - 1) * count)",
     "others = _added(channel, seen.others, seen.clients - 1)",
     "the others' codes of one coordinate only", ATTACKS),
    (LAWS, "ratios = (half - k + 1) / (half + k)", "ratios = (half - k) / (half + k)",
     "the binomial's ratios of the next place", ATTACKS),
    (LAWS, "ratio = 1 / (2 * k / mu + ratio)", "ratio = 1 / (2 * (k + 1) / mu + ratio)",
     "Bessel functions of the next order", ATTACKS),
    ("privacy/accounting/hidden.py", 'if self.models and self.release.trust == "local":',
     "if False:", "codes that the adversary does not see are attacked", ATTACKS),
    ("privacy/accounting/integer_noise.py", "reach = min(reach, self.longest)", "pass",
     "updates longer than a client can send", ATTACKS),
    ("privacy/accounting/gaussian.py", "height = max(left - right - 2 * SPECIAL * left,",
     "height = max(left - right + 2 * SPECIAL * left,", "a lower end rounded up", ATTACKS),
]  # fmt: skip

EQUIVALENT = []

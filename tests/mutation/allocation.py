"""Faults in the accounting for random allocation."""

HERE = ("tests/privacy/test_allocation.py",)

MUTANTS = [
    (
        "privacy/accounting/composition/allocation.py",
        "terms.folded(terms.masses * terms.values * (1 + 4 * UNIT))",
        "terms.folded(None)",
        "the client's own term is as small as the others",
        HERE,
    ),
    (
        "privacy/accounting/composition/allocation.py",
        "-np.diff(tail) + FINE * tail[:-1]",
        "np.zeros(FAR)",
        "terms beyond the last cell are forgotten",
        HERE,
    ),
    (
        "privacy/accounting/composition/allocation.py",
        "return self._present(reach, self.apart + math.sqrt(-2 * rare)), self._absent(reach)",
        "return (self._present(reach, self.apart + math.sqrt(-2 * rare)),)",
        "one direction forgotten",
        HERE,
    ),
    (
        "privacy/accounting/composition/allocation.py",
        "upper = np.clip((-np.diff(mean) - y[:-1] * inside + error) / step, 0.0, inside)",
        "upper = np.zeros(cells)",
        "terms rounded down",
        HERE,
    ),
    (
        "privacy/accounting/composition/allocation.py",
        "(first + np.arange(len(sums))) * grid.step",
        "(first - 1 + np.arange(len(sums))) * grid.step",
        "merged losses rounded down",
        HERE,
    ),
    (
        "privacy/accounting/composition/allocation.py",
        "* (self.step / self.rounds)",
        "* (self.step / (self.rounds + 1))",
        "the mean of one round more",
        HERE,
    ),
    (
        "privacy/accounting/composition/allocation.py",
        "-np.log(terms.ratios[some]), sums[some], missed)",
        "-np.log(terms.ratios[some]), sums[some], 0.0)",
        "sums of zero are forgotten",
        HERE,
    ),
    (
        "privacy/accounting/allocated.py",
        "Allocation(apart, self.total // self.participations, through)",
        "Allocation(apart, self.total, through)",
        "every block is the whole run",
        HERE,
    ),
    (
        "privacy/accounting/allocated.py",
        "Allocation(apart, self.total // self.participations, through)",
        "Allocation(apart, -(-self.total // self.participations))",
        "blocks are longer than some of them are",
        HERE,
    ),
    (
        "privacy/accounting/allocated.py",
        "return block, self.participations * self.runs",
        "return block, self.runs",
        "one participation for all",
        HERE,
    ),
    (
        "privacy/accounting/allocated.py",
        'check_unseen(self.release, "drawn", self.hidden, self.models)',
        'check_unseen(self.release, "drawn", True, self.models)',
        "the server sees who takes part",
        HERE,
    ),
    (
        "privacy/accounting/allocated.py",
        "self.total // self.participations, through)",
        "self.total // self.participations, False)",
        "another update taken for zeros",
        HERE,
    ),
    (
        "privacy/accounting/allocated.py",
        "return self.release.distance * self.rounds * (1 + 8 * UNIT)",
        "return self.release.distance * self.participations * (1 + 8 * UNIT)",
        "zeros that absent clients send are taken for certified ones",
        HERE,
    ),
    (
        "privacy/accounting/composition/rule.py",
        "left = delta / 2 * math.exp(-min(epsilon, 700.0)) * (1 - 2.0**-40)",
        "left = delta / 2",
        "the second step's delta is not multiplied",
        HERE,
    ),
    (
        "privacy/accounting/composition/rule.py",
        "return (epsilon + rest) * (1 + 4 * UNIT), order",
        "return epsilon, order",
        "only the way to the world without the client",
        HERE,
    ),
    (
        "privacy/accounting/composition/fourier.py",
        "result, left = np.fft.rfft(another), power - 1",
        "result, left = np.fft.rfft(another), power",
        "a factor too many beside the other one",
        HERE,
    ),
]

EQUIVALENT = []

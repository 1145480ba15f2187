"""Faults in runs of which the adversary sees the models only."""

HERE = ("tests/training/test_cohort_hidden.py",)

MUTANTS = [
    (
        "training/cohort.py",
        "if hidden is not None or mechanism.of_client(0) is mechanism:",
        "if mechanism.of_client(0) is mechanism:",
        "a mean that shows whose shares it holds, in cohorts that nobody may see",
        HERE,
    ),
    (
        "training/cohort.py",
        "mean = (mean * np.float64(filled.population / filled.summed))",
        "mean = (mean * np.float64(filled.population / max(len(cohort), 1)))",
        "a sum divided by how many took part",
        HERE,
    ),
    (
        "training/algorithm.py",
        "if not cohort and hidden is None:",
        "if not cohort:",
        "a round in which nobody takes part leaves the model as it is",
        HERE,
    ),
    (
        "training/participation.py",
        "numbers < each - np.asarray(participations)",
        "numbers <= each - np.asarray(participations)",
        "clients take part too often",
        HERE,
    ),
    (
        "training/participation.py",
        "words = key.fold_in(attempt).words(missing.size)",
        "words = np.repeat(key.fold_in(attempt).words(1), missing.size)",
        "one draw for all clients",
        HERE,
    ),
    (
        "training/participation.py",
        "return sorted(np.argsort(words)[:cohort].tolist())",
        "return sorted((np.arange(cohort) + words[0] % population) % population)",
        "neighbours take part together",
        HERE,
    ),
    (
        "privacy/accounting/cohorts.py",
        'return self.draw != "fixed" and trust != "central"',
        "return False",
        "noise of absent clients is counted on",
        HERE,
    ),
    (
        "privacy/accounting/cohorts.py",
        "return self.population if self.all_send(trust) else self.cohort",
        "return self.population",
        "noise of all clients in a sum of a fixed size",
        HERE,
    ),
    (
        "privacy/accounting/hidden.py",
        'if models and draw != "fixed":',
        "if False:",
        "sums without the noise of absent clients",
        HERE,
    ),
    (
        "training/schedule.py",
        "return self.ledger.guarantee(rounds if self.ledger.hidden else participations)",
        "return self.ledger.guarantee(participations)",
        "participations that nobody sees count once more for the better",
        HERE,
    ),
    (
        "training/runs/folder.py",
        ' or config.privacy.sampling == "drawn"',
        "",
        "rounds are added to a run whose clients have drawn theirs",
        HERE,
    ),
    (
        "training/config.py",
        'if privacy.unit == "example":\n            raise ValueError(\n                "Expected unit client under model',
        'if False:\n            raise ValueError(\n                "Expected unit client under model',
        "single examples under model trust",
        HERE,
    ),
]

EQUIVALENT = []

"""Faults in rank mechanisms: tables, their certificate, the sampler, rotations."""

TABLE = ("tests/privacy/test_rank.py",)
ACCOUNT = ("tests/privacy/test_ranks.py",)
DESIGN = ("tests/mechanisms/test_ranks.py",)
HERE = ("tests/aggregation/test_rank.py",)
SPREAD = ("tests/aggregation/test_spreading.py",)

MUTANTS = [
    (
        "privacy/certificates/rank.py",
        "if any(low >= high for",
        "if any(False for",
        "a table that is not sorted",
        TABLE,
    ),
    (
        "privacy/certificates/rank.py",
        "self._weight(first), self._weight(ranks - end)",
        "self._weight(first), self._weight(first)",
        "the table against itself",
        TABLE,
    ),
    (
        "privacy/certificates/rank.py",
        "return (there, absent), (absent, there)",
        "return ((there, absent),)",
        "zero_out in one direction only",
        (*TABLE, *ACCOUNT),
    ),
    (
        "privacy/certificates/rank.py",
        'if neighboring == "replace_one":',
        "if False:",
        "a zero update for the worst one of replace_one",
        ACCOUNT,
    ),
    (
        "privacy/accounting/ranks.py",
        "return RankWorlds(self.table, self.neighboring), self.rounds",
        "return RankWorlds(self.table, self.neighboring), 1",
        "one round accounted for all",
        ACCOUNT,
    ),
    (
        "privacy/accounting/ranks.py",
        "return self._losses(upward=False)",
        "return self._losses(upward=True)",
        "a lower end that is rounded up",
        ACCOUNT,
    ),
    (
        "privacy/accounting/composition/rule.py",
        "return {tilt, *GENTLE} if tilt > GENTLE[-1] else {tilt}",
        "return {tilt}",
        "only the tilt that leaves the largest loss alone",
        ACCOUNT,
    ),
    (
        "mechanisms/design/ranks.py",
        "steps = [high - low for",
        "steps = [high for",
        "a gain that counts every level from the first rank on in full",
        DESIGN,
    ),
    (
        "mechanisms/design/ranks.py",
        "/ (cut * math.expm1(epsilon) + 2 * size)",
        "/ (cut * math.exp(epsilon) + 2 * size)",
        "the worse ranks counted as if there were more",
        DESIGN,
    ),
    (
        "mechanisms/design/ranks.py",
        "return size * _mean_density(size - count, count) / length",
        "return size * _mean_density(size - count, count) / math.sqrt(size)",
        "the sphere taken for the normal law",
        DESIGN,
    ),
    (
        "aggregation/rank.py",
        "words[words <= last]",
        "words",
        "words beyond the largest multiple are kept",
        HERE,
    ),
    (
        "aggregation/rank.py",
        "units = units.astype(np.int64)",
        "units = (units + 1).astype(np.int64)",
        "a sampler that is off by one unit",
        HERE,
    ),
    (
        "aggregation/selection.py",
        "indices[order[place - before]]",
        "indices[order[0]]",
        "the first of a bin for all its places",
        ("tests/aggregation/test_selection.py",),
    ),
    (
        "aggregation/selection.py",
        "while before + counts[at] <= place:",
        "while before + counts[at] < place:",
        "the place before the first of a bin",
        ("tests/aggregation/test_selection.py",),
    ),
    (
        "aggregation/selection.py",
        'np.argsort(-magnitudes, kind="stable")[place]',
        "np.argpartition(-magnitudes, place)[place]",
        "equal magnitudes get one index for several ranks",
        ("tests/aggregation/test_selection.py",),
    ),
    (
        "aggregation/rank.py",
        "(vector[at] < 0) != (rank >= size)",
        "vector[at] < 0",
        "the sign of the worse half is not exchanged",
        HERE,
    ),
    (
        "aggregation/rank.py",
        "sent = min(norm / self.clip_norm, 1.0)",
        "sent = 1.0",
        "a short update is sent as if it were long",
        HERE,
    ),
    (
        "aggregation/rank.py",
        'group = int(draw_below(self.groups, key.fold_in("group"))[0])',
        "group = 0",
        "one rotation for everybody",
        HERE,
    ),
    (
        "aggregation/rank.py",
        'draw_below(self.groups, key.fold_in("group"))',
        'draw_below(self.groups, key.fold_in("group", int(vector[0] > 0)))',
        "a rotation that is drawn again for another update",
        HERE,
    ),
    (
        "aggregation/rank.py",
        "self.length(dimension) / len(payloads)",
        "self.clip_norm / len(payloads)",
        "decoded without the gain",
        HERE,
    ),
    (
        "aggregation/rank.py",
        "if value >= count:",
        "if False:",
        "an index out of range",
        HERE,
    ),
    (
        "aggregation/spreading.py",
        "sign = 1.0 if normal[0] >= 0 else -1.0",
        "sign = 1.0",
        "a rotation that is not uniformly distributed",
        SPREAD,
    ),
    (
        "planning/plan/planner.py",
        "turn = replace(need, cohort=cohort, participations=1)",
        "turn = replace(need, participations=1)",
        "turns in cohorts of all clients",
        ("tests/planning/test_plan_turns.py",),
    ),
    ("aggregation/spreading.py", "PASSES = 3", "PASSES = 1", "one pass of signs", SPREAD),
]

EQUIVALENT = []

"""Faults of whole updates: a norm or noise that no longer protects."""

# fmt: off
FAULTS = {
    "aggregation/additive.py": [
        ("key.fold_in(attempt).words(steps.size)",
         "key.words(steps.size)",
         "a rounding that is drawn again is the same rounding"),
        ("4 * mechanism.noise_multiplier**2 * bound / cohort * (1 + 2.0**-48)",
         "mechanism.noise_multiplier**2 * bound / cohort",
         "half the noise"),
    ],
    "aggregation/baselines.py": [
        ("key.claim()",
         "None",
         "noise twice from one key"),
    ],
    "aggregation/clipping.py": [
        ("return clip_norm * (1 - 2.0**-22) - size * 2.0**-150",
         "return clip_norm - size * 2.0**-150",
         "rounding takes an update beyond its norm"),
    ],
    "aggregation/payloads.py": [
        ("clients < cohort",
         "False",
         "fewer than the cohort"),
        ("copies and log_equal + math.log(math.comb(len(payloads), 2)) < BY_CHANCE",
         "False",
         "one payload forty times"),
    ],
    "aggregation/hostile.py": [
        ("valid * most / largest",
         "valid",
         "any vector bounded as if it were codes"),
    ],
    "aggregation/coordinate.py": [
        ("reach * math.sqrt(dimension) / clients",
         "reach / clients",
         "one coordinate's bound for that of a vector"),
    ],
    "aggregation/rank/release.py": [
        ("return RankWorlds(self.table, self.neighboring), self.rounds",
         "return RankWorlds(self.table, self.neighboring), 1",
         "one round accounted for all"),
    ],
    "aggregation/rank/table.py": [
        ('neighboring == "replace_one"',
         "False",
         "a zero update for the worst one of replace_one"),
    ],
    "aggregation/rank/mechanism.py": [
        ("group = self.group(key)",
         "group = 0",
         "one rotation for everybody"),
    ],
    "aggregation/subset.py::forward": [
        ("clip_to_norm(vector, self.clip_norm)",
         "vector",
         "no clipping of the norm"),
    ],
    "aggregation/vector.py::release": [
        ("sent.norm_sent",
         "sent.norm_sent / 2",
         "half the norm is accounted for"),
    ],
}

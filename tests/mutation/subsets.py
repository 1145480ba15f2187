"""Faults in what a random subset of the coordinates is, and in how a run uses it."""

SUBSET = ("tests/aggregation/test_subset.py",)
RUN = ("tests/training/test_algorithm_subsets.py",)
CHOSEN = ("tests/privacy/test_chosen.py",)
ADAPTIVE = ("tests/aggregation/test_adaptive.py",)
ADAPTIVE_RUN = ("tests/training/test_algorithm_adaptive.py",)
PLAN = ("tests/planning/test_plan_subsets.py",)
FELT = ("tests/planning/test_plan_felt.py",)
SIGNAL = ("tests/training/test_signal.py",)

MUTANTS = [
    # The subset ----------------------------------------------------------------------------------
    (
        "aggregation/subset.py",
        "np.unique(words & np.uint64(size - 1))",
        "np.unique(words % np.uint64(max(size - 1, 1)))",
        "the last coordinate is never sent",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        "indices = np.flatnonzero(drawn if 2 * count <= size else ~drawn)",
        "indices = np.arange(count) + int(np.argmax(drawn)) % (size - count + 1)",
        "neighbours are sent",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        "drawn if 2 * count <= size else ~drawn",
        "drawn if 2 * count < size else ~drawn",
        "half of the coordinates is the other half",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        'Key.from_seed(seed).fold_in("subset")',
        'Key.from_seed(0).fold_in("subset")',
        "the same subset in every round",
        SUBSET,
    ),
    # What is sent --------------------------------------------------------------------------------
    (
        "aggregation/subset.py",
        "kept = clip_to_norm(rotated[self.indices], self.norm_sent)",
        "kept = rotated[self.indices]",
        "no second clip",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        "kept = clip_to_norm(rotated[self.indices], self.norm_sent)",
        "kept = clip_to_norm(rotated[self.indices], self.clip_norm)",
        "the second clip is the first",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        "self.clip_norm * math.sqrt(self.coordinates / self.rotated)",
        "self.clip_norm * math.sqrt(self.coordinates / self.dimension)",
        "padding is not counted",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        "mean * (self.rotated / self.coordinates)",
        "mean * (self.coordinates / self.rotated)",
        "a mean scaled by k/D",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        '"subset", count, seed)',
        '"subset", count)',
        "subsets of two rounds are added up",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        '"subset", count, seed)',
        '"subset", seed)',
        "subsets of two sizes",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        "variance=each.variance * times,",
        "variance=each.variance,",
        "the error of the numbers sent is that of the mean",
        SUBSET,
    ),
    (
        "aggregation/subset.py",
        "omitted=(times - 1) / self.rotated,",
        "omitted=0.0,",
        "what is left out is no error",
        SUBSET,
    ),
    (
        "privacy/accounting/releases.py",
        "min(self.clip_norm, self.whole_norm * share(self.examples))",
        "self.clip_norm * share(self.examples)",
        "one example changes a k-th part only",
        SUBSET,
    ),
    (
        "aggregation/additive.py",
        "scale = low / projection.norm_sent",
        "scale = low / mechanism.clip_norm",
        "a grid too coarse",
        SUBSET,
    ),
    # A run ---------------------------------------------------------------------------------------
    (
        "training/algorithm.py",
        "public.fold_in(number).words(1)",
        "public.words(1)",
        "the same subset in every round of a run",
        RUN,
    ),
    (
        "training/algorithm.py",
        'Key.from_seed(public_seed).fold_in("rounds")',
        'Key.from_seed(0).fold_in("rounds")',
        "the same subsets in every run",
        RUN,
    ),
    (
        "training/runs/setup.py",
        "        coordinates=None, stop_at",
        "        stop_at",
        "a baseline with a subset",
        RUN,
    ),
    # A plan --------------------------------------------------------------------------------------
    (
        "planning/plan/subsets.py",
        "most = TOLERATED * whole.noise.deviation",
        "most = FARTHEST * whole.noise.deviation",
        "too few coordinates",
        PLAN,
    ),
    (
        "planning/plan/record.py",
        "error.deviation(self.cohort, self.mean_norm)",
        "error.deviation(self.cohort)",
        "the length that is given does not count",
        PLAN,
    ),
    (
        "planning/plan/record.py",
        "setting = need.sending(entry.coordinates).setting",
        "setting = need.setting",
        "the mechanism that is returned sends all",
        PLAN,
    ),
    # What the loss feels of noise ----------------------------------------------------------------
    (
        "planning/plan/record.py",
        "math.sqrt(rank / self.dimension) * noise.length",
        "rank / self.dimension * noise.length",
        "noise is felt less than it is",
        FELT,
    ),
    (
        "planning/plan/verdict.py",
        "noise.share if felt is None else felt / math.sqrt(need.rounds)",
        "noise.share if felt is None else felt",
        "more rounds are judged worse",
        FELT,
    ),
    (
        "training/signal.py",
        "(float(mean @ mean) - own) * count / (count - 1)",
        "float(mean @ mean)",
        "chance counts as agreement",
        SIGNAL,
    ),
    (
        "training/signal.py",
        'which="LA"',
        'which="LM"',
        "curvature downwards counts as the largest",
        SIGNAL,
    ),
    (
        "training/signal.py",
        "chosen = draw.permutation(len(places))[:examples]",
        "chosen = np.arange(len(places))[:examples]",
        "the first clients' curvature stands for all",
        SIGNAL,
    ),
    (
        "training/signal.py",
        "problem.model.eval()",
        "problem.model.train()",
        "dropout adds to the curvature",
        SIGNAL,
    ),
    # A number that changes from round to round ---------------------------------------------------
    (
        "privacy/accounting/chosen.py",
        "max(each.renyi(order) for each in self.choices)",
        "min(each.renyi(order) for each in self.choices)",
        "rounds count as the cheapest choice",
        CHOSEN,
    ),
    (
        "privacy/accounting/chosen.py",
        "max(part.energy for part in parts)",
        "min(part.energy for part in parts)",
        "the energy of the cheapest choice",
        CHOSEN,
    ),
    (
        "aggregation/adaptive.py",
        "(*squares, own)[-MEMORY:]",
        "(own,)",
        "the last round alone is remembered",
        ADAPTIVE,
    ),
    (
        "aggregation/error.py",
        "(seen - noise) / (1 + decoded.size * self.omitted)",
        "max(seen - noise, 0.0) / (1 + decoded.size * self.omitted)",
        "estimates below zero are cut off before they are averaged",
        ADAPTIVE,
    ),
    (
        "training/runs/checkpoint.py",
        "        tuple(squares),",
        "        (),",
        "a run that goes on has forgotten the length of the mean",
        ADAPTIVE_RUN,
    ),
]

EQUIVALENT = []

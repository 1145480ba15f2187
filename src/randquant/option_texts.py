"""What the help says about settings: parameters of mechanisms, and fields of a run."""

from __future__ import annotations

from randquant.datasets import DATASETS

PARAMETERS = {
    "clip": "per-coordinate clipping threshold, > 0",
    "clip_norm": "clipping threshold of a whole update's norm, > 0; train and account take it for "
    "every channel",
    "margin": "how far the outermost level lies beyond clip, >= 0",
    "levels": "how many codes, 2 to 256",
    "keep": "probability that an inner level is kept, 0 to 1",
    "theta": "success probability is 1/2 + theta x / clip; 0 to 1/2",
    "trials": "binomial trials, 1 to 255; trials + 1 codes",
    "bins": "increasing values of the codes, as A,B,...; optm: or how many to search for",
    "programme": "full or reduced",
    "gamma": "how strongly near bins are preferred, >= 0",
    "values": "increasing values of the codes, as A,B,...",
    "reach": "largest magnitude of a searched level",
    "objective": "mae, mse or worst_variance",
    "inputs": "vertices between which inputs are dithered",
    "geometry": "pure, l1 or l2",
    "density": "samples of the input, as A,B,... or @FILE; uniform unless given",
    "path": "channel file, as design --save writes it",
    "p": "success probability of the geometric distances, between 0 and 1",
    "mixing": "keeps the probability of either side within mixing and 1 - mixing",
    "epsilon": "pure epsilon per coordinate (imvu: between clip_norm/beta and -clip_norm/beta)",
    "beta": "input scaling, 1 to 10,000; larger suits coordinates small beside clip_norm",
    "noise_multiplier": "deviation of the noise over the distance between neighbouring sums",
    "bits": "bits per coordinate, 2 to 24 (default 16)",
    "deviations": "standard deviations of a sum that fit in half its range (default 6)",
    "rotation_seed": "public seed of the rotation (default 0)",
}

TRUST = "who sees what: local, or aggregate (only sums of codes); default the mechanism's own"
NORM = "norm that --clip-norm is about: l2 (default) or l1"
NEIGHBORING = "what is hidden: replace_one (default: another update) or zero_out (zeros instead)"

TRAIN_FIELDS = {
    "dataset": (str, f"data set: {', '.join(DATASETS)}"),
    "data_dir": (str, "folder of the data files; digits and breast-cancer need none"),
    "features": (str, "what is trained on: the data (default), scattering, or pca-K"),
    "fitted_on": (
        str,
        "what pca-K and standardisation are fitted on: public (default: examples that no client "
        "holds) or all (clients' data; no epsilon covers that)",
    ),
    "model": (str, "softmax, mlp, mlp32, wide or cnn"),
    "mechanism": (str, "one of {mechanisms}"),
    "population": (int, "how many clients the data is split over"),
    "cohort": (int, "how many clients take part in each round"),
    "rounds": (int, "how many rounds, at most"),
    "partition": (str, "how data is split over clients: iid, shards, dirichlet, natural"),
    "concentration": (float, "Dirichlet concentration"),
    "learning_rate": (float, "the server's step size"),
    "delta": (float, "delta of the printed guarantee"),
    "seed": (int, "simulation seed: data split, weights, cohorts, simulated keys"),
    "checkpoint_every": (int, "rounds between checkpoints"),
    "evaluate_every": (int, "rounds between evaluations on test data"),
    "threads": (int, "threads to simulate clients on"),
    "trust": (str, TRUST),
    "norm": (str, NORM),
    "neighboring": (str, NEIGHBORING),
    "stop_at_epsilon": (
        float,
        "end before the round that would take epsilon above this; inf for no such end",
    ),
    "max_participations": (int, "most rounds that one client takes part in"),
    "sampling": (str, "cohorts: fixed in size, or poisson (each client by a coin of its own)"),
    "batch": (int, "samples of a local step; default all of a client's"),
    "local_epochs": (int, "passes over a client's data in a round"),
    "local_learning_rate": (float, "step size of local SGD; default: one gradient is sent"),
    "server_optimizer": (str, "sgd or adam"),
    "server_momentum": (float, "momentum of the server's SGD"),
    "unit": (str, "what the guarantee hides: a whole client, or one example of a client's"),
    "device": (str, "where updates are computed: cpu, or cuda"),
}

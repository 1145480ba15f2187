"""What the help says about the settings of a run; mechanisms' records say it of parameters."""

from __future__ import annotations

from randquant.datasets import DATASETS

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

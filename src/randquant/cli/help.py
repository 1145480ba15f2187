"""What the help says about settings: parameters of mechanisms, and fields of a run."""

from __future__ import annotations

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

DATA_DIR = "folder of the data files; digits and breast-cancer need none"

"""What step sizes do on public roles: python benchmarks/shakespeare_choose.py DATA_DIR PART C RATES

No client's data is looked at: `public_clients` stand for them, with the noise of as many as there
are. C is the threshold of a client's gradient. `shakespeare_rows.py` has what was chosen.
"""

import argparse
import itertools
import math
from pathlib import Path

import numpy as np
import torch
from shakespeare import Task, gaussian, mean, prepared, pretrained, trained
from shakespeare_picture import task
from shakespeare_rows import BATCH, DAMPING, EPSILONS, FEW, PUBLIC_RATES, SETTINGS, STAND_INS

from randquant.aggregation import ClippedSGD
from randquant_papers.text.evaluation import evaluate


def public_clients(part: str, found: task.Roles, model: torch.nn.Module, damping: float) -> Task:
    """The task with eight of public roles' test windows as a client; 480 train, the others test."""
    windows = task.pooled(found.public_test)
    order = np.random.default_rng(0).permutation(-(-len(windows[0]) // BATCH))
    drawn = [tuple(each[BATCH * k : BATCH * (k + 1)] for each in windows) for k in order]
    stand_in = found._replace(clients=drawn[:STAND_INS], clients_test=drawn[STAND_INS:])
    return prepared(part, stand_in, model, damping)


def main() -> None:
    """Print what each step size wins without privacy and at each epsilon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("part", choices=list(SETTINGS[FEW]))
    parser.add_argument("clip_norm", type=float)
    parser.add_argument("rates", type=float, nargs="+")
    parser.add_argument("--epsilon", type=float, nargs="*", default=(math.inf, *EPSILONS))
    parser.add_argument("--damping", type=float, default=DAMPING, help="of all linear layers")
    parser.add_argument("--passes", type=int, default=FEW, choices=PUBLIC_RATES)
    parser.add_argument("--cache", type=Path, default=Path("runs/shakespeare"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = task.roles(given.data_dir)
    model = pretrained(found, given.passes, given.cache)
    of = public_clients(given.part, found, model, given.damping)
    before = evaluate(of.model, of.tested)
    share = len(of.clients) / len(found.clients)
    dimension = SETTINGS[FEW][given.part].dimension
    for rate, epsilon in itertools.product(given.rates, given.epsilon):
        mechanism = ClippedSGD(clip_norm=given.clip_norm)
        if epsilon < math.inf:
            mechanism = gaussian(given.clip_norm, epsilon, dimension, share)
        after = evaluate(trained(of, rate, 0, mechanism=mechanism).model, of.tested)
        won = 1000 * (mean(before.bits, before) - mean(after.bits, after))
        print(f"{rate=} {epsilon=}: {won:.2f} thousandths of a bit won", flush=True)


if __name__ == "__main__":
    main()

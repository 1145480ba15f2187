"""What step sizes do on public roles: python benchmarks/shakespeare_choose.py DATA_DIR PART C RATES

No client's data is looked at. Eight test windows of public roles stand for a client, 480 of them
train and the others test, and the noise is that of as many clients as there are. C is the threshold
of a client's gradient. `benchmarks/shakespeare_rows.py` has what was chosen.
"""

import argparse
import itertools
import math
from pathlib import Path

import numpy as np
import torch
from shakespeare import Task, gaussian, mean, prepared, pretrained, trained
from shakespeare_picture import task
from shakespeare_rows import BATCH, DAMPING, EPSILONS, FEW, PUBLIC_RATES, SETTINGS
from torch import nn

from randquant.aggregation.baselines import ClippedSGD
from randquant.training.evaluation import evaluate

CLIENTS = 480


def public_clients(part: str, found: task.Roles, model: nn.Module, damping: float) -> Task:
    """The task with eight of public roles' test windows as a client."""
    windows = task.pooled(found.public_test)
    order = np.random.default_rng(0).permutation(-(-len(windows[0]) // BATCH))
    drawn = [tuple(each[BATCH * k : BATCH * (k + 1)] for each in windows) for k in order]
    stand_in = found._replace(clients=drawn[:CLIENTS], clients_test=drawn[CLIENTS:])
    return prepared(part, stand_in, model, damping)


def gradient(model: nn.Module, *windows: np.ndarray | torch.Tensor) -> torch.Tensor:
    """A client's gradient as one vector."""
    own = [each for each in model.parameters() if each.requires_grad]
    features, targets = map(torch.as_tensor, windows)
    loss = nn.functional.cross_entropy(model(features), targets)
    return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, own)])


def lengths(of: Task, clip_norm: float) -> str:
    """How long gradients are, and the mean of many."""
    gradients = torch.stack([gradient(of.model, *each) for each in of.clients])
    found = gradients.norm(dim=1)
    clipped = gradients * (clip_norm / found).clamp(max=1)[:, None]
    # The squared length of a mean of few exceeds that of many by its variance.
    variance = float(clipped.var(0).sum()) / len(clipped)
    length = math.sqrt(max(0.0, float(clipped.mean(0).norm()) ** 2 - variance))
    shown = np.quantile(found, [0.1, 0.5, 0.9])
    return f"lengths {shown}; of the mean of all, clipped, {length}"


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
    print(lengths(of, given.clip_norm), flush=True)
    before = evaluate(of.model, of.tested)
    share = CLIENTS / len(found.clients)
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

"""A round of simulation, ours beside bare torch and pfl: python benchmarks/simulate.py DATA [PFL]

40 clients of 100 Fashion-MNIST images each, out of 3,400; the same images, cohorts and initial
weights for all. Each contestant runs in processes of its own, in turn with the others. DATA is the
folder of the IDX files. PFL is a folder that pfl is installed in (without it, pfl is left out):
    pip install --no-deps --target PFL pfl prv-accountant multiprocess
Without privacy all of them must end at the same weights, which is checked first.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from results import save

from randquant.aggregation import update_mechanism
from randquant.channels import Key
from randquant.local_training import Learner, make_problem
from randquant.training import OptimizerStep, distributed_sgd, sample_cohort, torch_optimizer
from randquant_papers import problems
from randquant_papers.data import datasets

POPULATION, COHORT, IMAGES, RATE = 3400, 40, 100, 0.1
WARM, TIMED, PASSES = 3, 12, 3
RQM = {"clip": 0.01, "margin": 0.01, "levels": 16, "keep": 0.42}


def split():
    """Which images each client holds; clients share some, since there are only 60,000."""
    return np.random.default_rng(0).integers(60_000, size=(POPULATION, IMAGES))


def cohort(number):
    return sample_cohort(POPULATION, COHORT, number, Key.from_seed(0))


def initial(name):
    return problems.build(name, (1, 28, 28), 10, seed=0)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def bare(name, folder, rounds, private, layout=torch.contiguous_format):
    """Forward and backward of every client's images, and plain SGD: nothing is encoded."""
    torch.set_num_threads(2)
    data, parts, model = datasets.load("fashion-mnist", folder), split(), initial(name)
    model = model.to(memory_format=layout)
    held = {
        c: (torch.from_numpy(data.train_features[parts[c]]).contiguous(memory_format=layout),
            torch.from_numpy(data.train_labels[parts[c]]))
        for number in range(1, rounds + 1) for c in cohort(number)
    }  # fmt: skip
    parameters, took = list(model.parameters()), []
    for number in range(1, rounds + 1):
        started = time.perf_counter()
        total = [torch.zeros_like(p) for p in parameters]
        for client in cohort(number):
            images, labels = held[client]
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            for sum_, part in zip(total, torch.autograd.grad(loss, parameters), strict=True):
                sum_ += part
        with torch.no_grad():
            for p, sum_ in zip(parameters, total, strict=True):
                p -= RATE * sum_ / COHORT
        took.append(time.perf_counter() - started)
    return took, flat(model), 0.0


def bare_channels_last(name, folder, rounds, private):
    return bare(name, folder, rounds, private, torch.channels_last)


def ours_on_gpu(name, folder, rounds, private):
    """The same with data, model and gradients on a GPU, where there is one."""
    return ours(name, folder, rounds, private, "cuda")


def ours(name, folder, rounds, private, device="cpu"):
    """Gradients, clip, encode, pack, unpack, sum, decode, step: the package's own loop."""
    data, workers = datasets.load("fashion-mnist", folder), 2
    train = torch.utils.data.TensorDataset(
        *map(torch.from_numpy, (data.train_features, data.train_labels))
    )
    # Images are not copied, though clients share them.
    shared = [torch.utils.data.Subset(train, rows) for rows in split()]
    test = data.test_features, data.test_labels
    learner = Learner(make_problem(initial(name), shared, test=test), device=device)
    size = sum(each.nbytes for each in train.tensors) / 2**20
    mechanism = update_mechanism(*(("rqm", RQM) if private else ("clipped-sgd", {"clip": 1e30})))
    torch.set_num_threads(workers)
    took = []
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        algorithm = distributed_sgd(
            learner, mechanism, population=POPULATION, pool=pool, workers=workers,
            server=OptimizerStep(torch_optimizer("SGD", RATE, {}), [(learner.dimension,)]),
        )  # fmt: skip
        state, key = algorithm.init(), Key.from_seed(0)
        for number in range(1, rounds + 1):
            started = time.perf_counter()
            state, _ = algorithm.apply(state, cohort(number), key)
            took.append(time.perf_counter() - started)
    return took, state.parameters, size


def pfl(name, folder, rounds, private):
    """pfl's simulator in two processes, with its local Gaussian mechanism."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism

    torch.set_num_threads(1)
    data, parts, network = datasets.load("fashion-mnist", folder), split(), initial(name)
    features, labels = torch.from_numpy(data.train_features), torch.from_numpy(data.train_labels)
    order = iter([c for number in range(1, rounds + 2) for c in cohort(number)])
    held = {c: (features[parts[c]], labels[parts[c]])
            for number in range(1, rounds + 2) for c in cohort(number)}  # fmt: skip

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network

        def forward(self, x):
            return self.inner(x)

        def loss(self, x, y, eval=False):
            self.train(not eval)
            return torch.nn.functional.cross_entropy(self(x), y)

        def metrics(self, x, y, eval=False):
            return {"loss": Weighted(0.0, len(y))}

    module, took, last = Model(), [], [0.0]

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, metrics, model, *, central_iteration):
            now = time.perf_counter()
            took.append(now - last[0])
            last[0] = now
            return False, Metrics()

    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=RATE))
    local = [GaussianMechanism(1.0, 0.5)] if private else []
    population = FederatedDataset(
        lambda client: Dataset(held[client], user_id=str(client)), lambda: next(order)
    )
    backend = SimulatedBackend(population, None, postprocessors=local)
    last[0] = time.perf_counter()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**6, train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=1.0, local_batch_size=None
        ),
        callbacks=[Clock()],
    )  # fmt: skip
    return took, flat(module), 0.0


CONTESTANTS = {f.__name__: f for f in (bare, bare_channels_last, ours, ours_on_gpu, pfl)}


def one(contestant, name, folder, rounds, private):
    """What a process of its own runs: prints one JSON object."""
    took, parameters, size = CONTESTANTS[contestant](name, folder, rounds, private)
    if int(os.environ.get("RANK", "0")) == 0:
        with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
            np.save(file, parameters)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": took, "file": file.name, "memory": memory, "data": size}))


def run(contestant, name, folder, rounds, private):
    """A contestant's seconds per round, final weights, and megabytes."""
    command = [sys.executable]
    environment = dict(os.environ)
    if contestant == "pfl":
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command += [__file__, "--one", contestant, name, folder, str(rounds), str(int(private))]
    for _ in range(3):  # torch.distributed sometimes aborts after its work is done
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not done.returncode:
            break
    else:
        raise SystemExit(f"{contestant} failed:\n{done.stderr[-3000:]}")
    found = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    parameters = np.load(found["file"])
    Path(found["file"]).unlink()
    return found["seconds"], parameters, found


def check(name, folder, contestants):
    """Without privacy everybody must end at the same weights."""
    weights = {c: run(c, name, folder, 5, False)[1] for c in contestants}
    start = flat(initial(name))
    moved = float(np.abs(weights["bare"] - start).max())
    apart = {c: float(np.abs(w - weights["bare"]).max()) for c, w in weights.items()}
    print(f"{name}: weights moved by up to {moved:.3g}; apart from bare torch: {apart}")
    assert max(apart.values()) < 1e-3 * moved, apart
    return {"moved": moved, "apart": apart}


def main(folder, contestants):
    figures = {}
    for name in ("cnn", "softmax"):
        agreement = check(name, folder, contestants)
        rounds, seen = WARM + TIMED, {c: [] for c in contestants}
        for _ in range(PASSES):
            for contestant in contestants:
                seconds, _, found = run(contestant, name, folder, rounds, True)
                seen[contestant].append(statistics.median(seconds[WARM:]))
                if contestant == "ours":
                    memory = {"peak": found["memory"], "data": found["data"]}
        best = {c: 1e3 * min(s) for c, s in seen.items()}
        for contestant, ms in best.items():
            print(
                f"{name:8} {contestant:20} {ms:8.1f} ms   ours takes {best['ours'] / ms:.2f} of it"
            )
        figures[name] = {
            "milliseconds_per_round": best,
            "ours_over": {c: best["ours"] / ms for c, ms in best.items()},
            "agreement": agreement,
            "megabytes": memory,
        }
    save("simulate", {**figures, "torch": torch.__version__, "passes": PASSES, "rounds": TIMED})


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        one(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), sys.argv[6] == "1")
    else:
        with_pfl = len(sys.argv) > 2
        if with_pfl:
            sys.path.insert(0, str(Path(sys.argv[2]).resolve()))
        left_out = set() if with_pfl else {"pfl"}
        if not torch.cuda.is_available():
            left_out.add("ours_on_gpu")
        main(sys.argv[1], [c for c in CONTESTANTS if c not in left_out])

"""Memory of a whole run, and time to its first round: python benchmarks/memory.py [BEFORE]

3,400 clients of 100 examples of 784 float32, as separate tensors, as every 3,400th row of one
tensor, or as rows of a memory-mapped file; and a function that gives the data of one of a million
clients of 100 examples of 20. Each run is a process of its own. `peak_mb` is the most memory of the
process (resident), `own_mb` the most of it that is no page of a file, which the system takes back
when it needs it. Both include `imported_mb`: Python, torch and randquant before there are data.
Seconds are of the processor. BEFORE is the src of another commit, which is measured as well.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from results import save
from torch import nn

import randquant as rq

CLIENTS, EXAMPLES, FEATURES = 3400, 100, 784
MILLION, FEW_FEATURES = 1_000_000, 20
FORMS = ("tensors", "strided tensors", "memory-mapped", "function")


def tensors(folder):
    """Return each client's own tensors."""
    return [
        (torch.rand(EXAMPLES, FEATURES), torch.randint(10, (EXAMPLES,))) for _ in range(CLIENTS)
    ]


def strided_tensors(folder):
    """Return views of one tensor, of which each client has every 3,400th row."""
    x, y = torch.rand(CLIENTS * EXAMPLES, FEATURES), torch.randint(10, (CLIENTS * EXAMPLES,))
    return [(x[k::CLIENTS], y[k::CLIENTS]) for k in range(CLIENTS)]


def memory_mapped(folder):
    """Return rows of a file, which is written part by part."""
    path = Path(folder) / "features.npy"
    shape = (CLIENTS * EXAMPLES, FEATURES)
    x = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    for start in range(0, len(x), EXAMPLES):
        x[start : start + EXAMPLES] = np.random.default_rng(start).random((EXAMPLES, FEATURES))
    x.flush()
    del x
    x, y = np.load(path, mmap_mode="r"), np.arange(CLIENTS * EXAMPLES) % 10
    return [(x[k : k + EXAMPLES], y[k : k + EXAMPLES]) for k in range(0, len(x), EXAMPLES)]


def one_client(number):
    """Return the data of one of a million clients."""
    draw = np.random.default_rng(number)
    x = draw.normal(size=(EXAMPLES, FEW_FEATURES)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def megabytes(name):
    """Return a line of this process's status in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(name + ":")]
    return int(line.split()[1]) * 1024 / 1e6


class Watched:
    """Measures the most memory of this process, but for pages of files, while it is entered."""

    def __enter__(self):
        self.own, self._ended = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        self._thread.join()

    def _watch(self):
        while not self._ended.wait(0.005):
            self.own = max(self.own, megabytes("RssAnon"))


def given(form, folder):
    """Return the clients of a form, and the arguments of `train` that go with them."""
    if form == "function":
        return one_client, {"population": MILLION}
    return globals()[form.replace(" ", "_").replace("-", "_")](folder), {}


def small():
    """Return two clients."""
    return [(torch.rand(2, FEATURES), torch.tensor([0, 1])) for _ in range(2)]


def run(form, clients, options):
    """Train three rounds of 100 clients, and return the processor time at the end of each."""
    ends, model = [], nn.Linear(*((FEW_FEATURES, 2) if form == "function" else (FEATURES, 10)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that three rounds teach little
        rq.train(
            model, clients, epsilon=8, rounds=3, progress=False, **options,
            cohort=100 if options else min(100, len(clients)),
            server=rq.Server(on_round=lambda metrics: ends.append(time.process_time())),
        )  # fmt: skip
    return ends


def measured(form, folder):
    """Train in this process, and return what it took."""
    imported, (clients, options) = megabytes("VmRSS"), given(form, folder)
    started = time.process_time()
    with Watched() as watched:
        ends = run(form, clients, options)
    return {
        "imported_mb": round(imported),
        "peak_mb": round(megabytes("VmHWM")),
        "own_mb": round(watched.own),
        "seconds_to_first_round": round(ends[0] - started, 1),
        "seconds_a_round": round((ends[-1] - ends[0]) / 2, 2),
    }


def every_form(**variables):
    """Measure each form in a process of its own."""
    rows = []
    for form in FORMS:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, __file__, "--one", form, folder],
                capture_output=True, text=True, env={**os.environ, **variables},
            )  # fmt: skip
        if done.returncode:
            rows.append({"clients": form, "refused": done.stderr.strip().splitlines()[-1]})
        else:
            rows.append({"clients": form, **json.loads(done.stdout)})
        print(rows[-1], flush=True)
    return rows


def main(arguments):
    if arguments[:1] == ["--one"]:
        print(json.dumps(measured(*arguments[1:])))
        return
    data = CLIENTS * EXAMPLES * (FEATURES * 4 + 8) / 1e6
    found = {"data_mb": round(data), "forms": every_form()}
    if arguments:
        found["before"] = every_form(PYTHONPATH=arguments[0])
    save("memory", found)


if __name__ == "__main__":
    main(sys.argv[1:])

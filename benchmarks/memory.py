"""Memory of a whole run, and time to its first round: python benchmarks/memory.py

3,400 clients of 100 examples of 784 float32, as separate tensors, as every 3,400th row of one
tensor, or as rows of a memory-mapped file; and a function that gives the data of one of a million
clients of 100 examples of 20. Each run is a process of its own. `peak_mb` is the most memory of the
process (resident), `own_mb` the most of it that is no page of a file, which the system takes back
when it needs it. Both include `imported_mb`: Python, torch and randquant before there are data.
Another commit is measured with PYTHONPATH=ITS/src and `--print`, which writes no file.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
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


def measured(form, folder):
    """Train three rounds of 100 clients in this process, and return what they took."""
    imported, own, ended = megabytes("VmRSS"), [0.0], threading.Event()

    def watch():
        while not ended.wait(0.01):
            own[0] = max(own[0], megabytes("RssAnon"))

    threading.Thread(target=watch, daemon=True).start()
    options, model = {}, nn.Linear(FEATURES, 10)
    if form == "function":
        clients, options, model = one_client, {"population": MILLION}, nn.Linear(FEW_FEATURES, 2)
    else:
        clients = globals()[form.replace(" ", "_").replace("-", "_")](folder)
    started, ends = time.perf_counter(), []
    on_round = [lambda metrics: ends.append(time.perf_counter())]
    rq.train(
        model, clients, epsilon=8, rounds=3, cohort=100, progress=False,
        server=rq.Server(on_round=on_round), **options,
    )  # fmt: skip
    ended.set()
    return {
        "imported_mb": round(imported),
        "peak_mb": round(megabytes("VmHWM")),
        "own_mb": round(own[0]),
        "first_round_seconds": round(ends[0] - started, 1),
        "a_round_seconds": round((ends[-1] - ends[0]) / 2, 2),
    }


def main():
    if "--one" in sys.argv:
        print(json.dumps(measured(*sys.argv[2:])))
        return
    rows = []
    for form in FORMS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--one", form, folder]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            rows.append({"clients": form, "refused": done.stderr.strip().splitlines()[-1]})
        else:
            rows.append({"clients": form, **json.loads(done.stdout)})
        print(rows[-1], flush=True)
    if "--print" not in sys.argv:
        data = CLIENTS * EXAMPLES * (FEATURES * 4 + 8) / 1e6
        save("memory", {"data_mb": round(data), "forms": rows})


if __name__ == "__main__":
    main()

"""The app of adapters: what travels, and that it trains what `randquant.train` does."""

import gzip
import json
import math
import random
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from flower_grid import InProcessGrid
from flwr.app import Context, RecordDict

import randquant as rq
from randquant.aggregation import ClippedSGD, update_mechanism

APP = Path(__file__).parents[1] / "text_app"
sys.path.insert(0, str(APP))

from text_app import client_app, server_app, task  # noqa: E402

CONFIG = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
CLIENTS, RATE, CLIP_NORM = 3, CONFIG["learning-rate"], CONFIG["clip-norm"]

ONE_BIT = {"clip": 0.14, "levels": 2, "margin": 2.8e-3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Roles of seven training windows each, ten or more, so that one is public."""
    draw = random.Random(0)
    words = [chr(97 + draw.randrange(26)) * draw.randrange(1, 6) for _ in range(40)]
    texts = [" ".join(draw.choices(words, k=400))[:700] for _ in range(12)]
    roles = [{"play": "", "role": str(k), "speeches": [text]} for k, text in enumerate(texts)]
    path = tmp_path_factory.mktemp("data")
    (path / "roles.json.gz").write_bytes(gzip.compress(json.dumps(roles).encode()))
    return path


def joined(arrays, names):
    """Arrays of these names as one vector."""
    return torch.cat([torch.as_tensor(arrays[name]).flatten() for name in names])


def test_adapters_alone_travel_and_move_as_in_the_simulation(folder, tmp_path):
    results = tmp_path / "results.json"
    config = {
        **CONFIG, **ONE_BIT, "data-dir": str(folder), "epochs": 0, "num-partitions": CLIENTS,
        "num-server-rounds": 1, "cohort": CLIENTS, "stop-at-epsilon": 0.0,
        "results": str(results),
    }  # fmt: skip
    grid = InProcessGrid(client_app.app, range(1, CLIENTS + 1))
    for node in grid.contexts:
        own = {"partition-id": node - 1, "randquant-epsilon": math.inf, "randquant-ledger": "none"}
        grid.contexts[node] = Context(1, node, own, RecordDict(), config)
    server_app.app(grid, Context(1, 0, {}, RecordDict(), config))
    stored = json.loads(results.read_text())["adapters"]

    model = task.model({"pretrained": "", "epochs": 0}, str(folder))
    run = rq.train(
        model,
        task.roles(folder).clients[:CLIENTS],
        mechanism=ClippedSGD(clip_norm=CLIP_NORM),
        rounds=1,
        cohort=CLIENTS,
        local=rq.Local(batch=8, learning_rate=0),
        server=rq.Server(learning_rate=RATE),
        seed=0,
        progress=False,
    )
    names = task.adapters(model)
    assert stored.keys() == names.keys()
    assert all(name.endswith(".along") for name in names)
    before = joined(names, names)
    step, found = joined(run.model.state_dict(), names) - before, joined(stored, names) - before
    length = float(step.norm())
    # Bits are independent and unbiased: by Hoeffding beyond six deviations once in 3e7 runs.
    deviation = RATE * (ONE_BIT["clip"] + ONE_BIT["margin"]) / CLIENTS**0.5
    assert 12 * deviation < length
    assert abs(float(found @ step) / length - length) < 6 * deviation


def test_the_settings_as_they_stand_keep_the_limit_of_all_roles():
    own = {name: CONFIG[name] for name in ("clip", "levels", "margin")}
    mechanism = update_mechanism(
        "stochastic-rounding", own, trust="aggregate", cohort=CONFIG["cohort"],
        clip_norm=CONFIG["clip-norm"],
    )  # fmt: skip
    release = mechanism.release(3840, CONFIG["num-server-rounds"])
    epsilon = rq.account([release], CONFIG["delta"]).epsilon
    assert 7.5 < epsilon <= CONFIG["stop-at-epsilon"]


def test_the_file_that_all_have_gives_the_model_that_was_written(folder, tmp_path):
    made = task.model({"pretrained": "", "epochs": 0}, str(folder))
    torch.save(made.state_dict(), tmp_path / "made.pt")
    read = task.model({"pretrained": str(tmp_path / "made.pt")}, "no folder")
    weights = made.state_dict()
    assert weights.keys() == read.state_dict().keys()
    assert all(torch.equal(each, weights[name]) for name, each in read.state_dict().items())
    assert task.adapters(read).keys() == task.adapters(made).keys() == {"blocks.1.wide.along"}


def test_what_follows_the_last_attention_is_computed_apart_to_the_same_end(folder):
    model = task.model({"pretrained": "", "epochs": 0}, str(folder))
    for each in task.adapters(model).values():
        each.normal_()
    windows = task.roles(folder).clients[:1]
    [(states, following)] = task.below(model, windows)
    whole, parted = model(torch.from_numpy(windows[0][0])), task.Top(model)(states)
    assert torch.allclose(whole, parted, rtol=1e-5, atol=1e-5)
    trained = [each for each in model.parameters() if each.requires_grad]
    one, other = (
        torch.autograd.grad(torch.nn.functional.cross_entropy(output, following), trained)
        for output in (whole, parted)
    )
    assert all(float(a.norm()) > 0 for a in one)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(one, other, strict=True))

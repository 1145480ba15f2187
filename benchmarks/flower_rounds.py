"""Seconds of a round on a real deployment: python benchmarks/flower_rounds.py [ROUNDS [WAY ...]]

A SuperLink over TLS and two SuperNodes as processes of their own, on this machine. One after the
other it trains the softmax model on digits with FedAvg and no protection; with private updates of
local trust, which take one message; and with secure sums whose handshakes are apart (five messages)
or ahead (three, from the second round on). Seconds are of the clock, from round 2 on: most of a
round is waiting, since Flower polls every three seconds and starts a process for every message. So
rounds differ by three seconds, and means of a few rounds by one. Ways are fedavg, ahead, apart and
local; those that are not named are not measured, and keep what was.
"""

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from results import commit, save, stored

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "flower_app"
sys.path.insert(0, str(EXAMPLE))

import deploy  # noqa: E402 - the example's own module

WAYS = ("fedavg", "ahead", "apart", "local")
CLIENTS, ROUNDS = 2, 3

CLIENT = '''"""One gradient step; protected unless the run is plain FedAvg."""

from flwr.app import ArrayRecord, MetricRecord, RecordDict, Message
from flwr.clientapp import ClientApp

app = ClientApp()


def protected(message, context, call_next):
    if context.run_config["way"] == "fedavg":
        return call_next(message, context)
    from randquant.flower import QuantizeMod

    return QuantizeMod(epsilon=1e9, delta=1e-5)(message, context, call_next)


@app.train(mods=[protected])
def train(message, context):
    from flower_app import task

    model, learner = task.build(context.run_config, int(context.node_config["partition-id"]))
    (old,) = message.content.array_records.values()
    model.load_state_dict(old.to_torch_state_dict())
    learner.load(task.weights(model))
    (gradient,), _ = learner.updates([0])
    learner.load(learner.parameters() - gradient)
    arrays = ArrayRecord(learner.trained_model().state_dict())
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
'''

SERVER = '''"""FedAvg, as it is or with private updates; writes the seconds of each round."""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    from flower_app import task

    config, seconds = dict(context.run_config), []
    model, _ = task.build(config, 0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    way = config["way"]
    if way != "fedavg":
        from randquant.flower import QuantizedStrategy

        config["trust"] = "local" if way == "local" else "aggregate"
        options = {"handshake": way} if way != "local" else {}
        strategy = QuantizedStrategy(strategy, task.mechanism(config), patience=1, **options)
    started = time.monotonic()

    def note(number, arrays):
        nonlocal started
        seconds.append(time.monotonic() - started)
        started = time.monotonic()

    strategy.start(
        grid, ArrayRecord(model.state_dict()), config["num-server-rounds"], evaluate_fn=note
    )
    Path(config["results"]).write_text(json.dumps(seconds[1:]))  # the first is before round 1
'''


def measured(deployment: deploy.Deployment, way: str, rounds: int) -> list[float]:
    """Seconds of each round of one run."""
    folder, results = deployment.folder, deployment.folder / f"{way}.json"
    app = folder / "app"
    shutil.rmtree(app, ignore_errors=True)
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    text = (app / "pyproject.toml").read_text()
    key = "[tool.flwr.app.config]\n"
    (app / "pyproject.toml").write_text(text.replace(key, f'{key}way = "fedavg"\n'))
    (app / "flower_app" / "client_app.py").write_text(CLIENT)
    (app / "flower_app" / "server_app.py").write_text(SERVER)
    settings = {
        "way": way, "num-server-rounds": rounds, "num-partitions": CLIENTS, "cohort": CLIENTS,
        "clip-norm": 0.0, "results": str(results),
    }  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    (folder / "run.toml").write_text("".join(lines))
    run = deployment.start(
        f"run-{way}", "flwr", "run", "app", "here", "--stream", "--run-config", "run.toml"
    )
    run.wait(400 * rounds)
    if not results.exists():
        raise RuntimeError(f"Expected a run that ends well, see {folder}/run-{way}.log.")
    return json.loads(results.read_text())


def main(rounds: int, ways: Sequence[str]) -> None:
    """Deploy once, run the ways, FedAvg first, print and save."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("flower_rounds.py: Ended by a signal."))
    folder = Path(tempfile.mkdtemp(prefix="flower-rounds-"))
    deployment, found = deploy.Deployment(folder, CLIENTS, EXAMPLE), {}
    try:
        deployment.start_superlink()
        deployment.register()
        deployment.start_supernodes(1e9)
        for way in ways:
            seconds = measured(deployment, way, rounds)
            found[way] = {"seconds": seconds, "mean": statistics.mean(seconds[1:])}
            found[way] |= {"commit": commit(), "median": statistics.median(seconds[1:])}
            plain = found["fedavg"]["mean"]
            found[way]["over_fedavg"] = found[way]["mean"] / plain
            print(
                f"{way:7} {found[way]['mean']:6.1f} s a round, "
                f"{found[way]['over_fedavg']:.2f} times FedAvg's; all: "
                + ", ".join(f"{s:.1f}" for s in seconds),
                flush=True,
            )
        found = {**stored("flower_rounds").get("ways", {}), **found}
        save("flower_rounds", {"clients": CLIENTS, "ways": found})
        shutil.rmtree(folder, ignore_errors=True)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"flower_rounds.py: {error}")
    finally:
        deployment.end_all()


if __name__ == "__main__":
    named = [way for way in WAYS if way in ("fedavg", *sys.argv[2:])]
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS, named if sys.argv[2:] else WAYS)

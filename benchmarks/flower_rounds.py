"""Seconds of a round on a real deployment: python benchmarks/flower_rounds.py [options] [WAY ...]

A SuperLink over TLS and two SuperNodes as processes of their own, on this machine, train the model
of examples/flower_template on digits in several ways, as often as `--times` says, in turn: FedAvg
as Flower runs it by default, where clients also evaluate, in a message of its own (plain), or only
train (plain-trained); and private updates of local trust (local) or in secure sums: among clients
(among), or with a helper, a service of its own on this machine (helper). In `among` and `helper`
the accuracy of the cohort is in the sum, so that a round tells as much as one of `plain`; the
others only train. Ways that are not named are not measured, save those of FedAvg that they are
compared with.

Seconds are of the clock, from each run's round 2 on. Most of a round is waiting, since Flower looks
for messages every three seconds and starts a process for each. So rounds differ by three seconds,
and means of a few rounds by one.

It also says of what a message's time consists (`PARTS`): server, SuperNodes and the clients'
processes note when they send, receive, start and answer.
"""

import argparse
import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from results import save

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path[:0] = [str(EXAMPLES / "flower_app"), str(EXAMPLES.parent / "tests")]

import deploy  # noqa: E402 - the example's own module
from tls import parties  # noqa: E402 - certificates of the tests' own

WAYS = {
    "plain": ("FedAvg, which also evaluates", 2, "plain"),
    "among": ("secure sum with accuracy, among clients", 3, "plain"),
    "plain-trained": ("FedAvg, which only trains", 1, "plain-trained"),
    "among-trained": ("secure sum, among clients", 3, "plain-trained"),
    "helper": ("secure sum with accuracy, with a helper", 1, "plain"),
    "helper-trained": ("secure sum, with a helper", 1, "plain-trained"),
    "local-trained": ("private, local trust", 1, "plain-trained"),
}
"""What each is, its messages in a round after the first, and FedAvg that tells as much."""

PARTS = {
    "pushed": "until a SuperNode looks for messages",
    "received": "until its process is started",
    "started": "Python and Flower in the process",
    "loaded": "imports of the app's own module",
    "called": "the client's work, with the imports that it needs",
    "answered": "until the SuperNode looks for the answer",
    "sending": "until the server looks for it, and has all",
}
"""Moments of a message in their order, and what lies between each and the next one."""

CLIENTS = 2
KEYS = ("way", "results", "helper", "helper-files", "moments")
HELPER = [sys.executable, "-m", "randquant", "helper"]

CLIENT = '''"""The template's training; protected unless the run is plain FedAvg."""

import os
import time

LOADED = time.time()

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def started():
    """When this process was started, by the clock of `time.time`."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def noted(call):
    """A handler that notes when it is called and answers."""

    def noting(message, context, *call_next):
        called = time.time()
        reply = call(message, context, *call_next)
        client, moments = context.node_config["partition-id"], context.run_config["moments"]
        with open(f"{moments}.{client}", "a") as file:
            for name, at in (("started", started()), ("loaded", LOADED), ("called", called),
                             ("answered", time.time())):
                file.write(f"{name} {at:.4f}\\n")
        return reply

    return noting


@noted
def protected(message, context, call_next):
    if context.run_config["way"].startswith("plain"):
        return call_next(message, context)
    from randquant.flower import QuantizeMod

    known = context.run_config["helper"] or None
    return QuantizeMod(epsilon=1e9, delta=1e-5, helper=known)(message, context, call_next)


def begun(message, context):
    """The given model, this client's data, and its accuracy on them."""
    from private_app import task

    model = task.build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = task.client_data(int(context.node_config["partition-id"]), CLIENTS)
    metrics = {"num-examples": len(data[1]), "accuracy": task.accuracy(model, data)}
    return model, data, MetricRecord(metrics)


@app.train(mods=[protected])
def train(message, context):
    from private_app import task

    model, data, metrics = begun(message, context)
    task.train(model, data)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
@noted
def evaluate(message, context):
    return Message(RecordDict({"metrics": begun(message, context)[2]}), reply_to=message)
'''.replace("CLIENTS", str(CLIENTS))

SERVER = '''"""FedAvg, as it is or with private updates; writes the seconds of each round."""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


def note_pushes(grid, moments):
    """Note when requests are sent."""
    push = grid.push_messages

    def noting(messages):
        sent = list(messages)
        if sent:  # Flower pushes none where it does not evaluate
            with open(f"{moments}.server", "a") as file:
                file.write(f"pushed {time.time():.4f}\\n")
        return push(sent)

    grid.push_messages = noting


@app.main()
def main(grid, context):
    from private_app import task

    note_pushes(grid, context.run_config["moments"])
    config, seconds, model = context.run_config, [], task.build_model()
    kind, _, trained = config["way"].partition("-")
    asked = {} if kind == "plain" and not trained else {"fraction_evaluate": 0.0}
    strategy, rounds = FedAvg(**asked), config["num-server-rounds"]
    if kind != "plain":
        import randquant as rq
        from randquant.flower import TLS, QuantizedStrategy, RemoteHelper, WithHelper

        told = rq.Privacy(bits=1, numbers=() if trained else [rq.Number("accuracy")])
        how = {"trust": "local"} if kind == "local" else {}
        if kind == "helper":
            address, *files = config["helper-files"].split()
            how = {"sums": WithHelper(RemoteHelper(address, TLS(*files)))}
        strategy = QuantizedStrategy.for_target(
            strategy, epsilon=1000, rounds=rounds, cohort=2, model=model, patience=1,
            privacy=told, **how,
        )
    started = time.monotonic()

    def note(number, arrays):
        nonlocal started
        seconds.append(time.monotonic() - started)
        started = time.monotonic()

    result = strategy.start(grid, ArrayRecord(model.state_dict()), rounds, evaluate_fn=note)
    told = result.evaluate_metrics_clientapp if kind == "plain" else result.train_metrics_clientapp
    if not (trained or all("accuracy" in told[number] for number in range(1, rounds + 1))):
        raise RuntimeError(f"Expected the clients' accuracy in each round, got {told}.")
    Path(config["results"]).write_text(json.dumps(seconds[1:]))  # the first is before round 1
'''


@contextlib.contextmanager
def helper_service(folder: Path) -> Iterator[dict[str, str]]:
    """A helper in a process of its own; what a run's configuration says of it."""
    own, server = parties(folder / "tls", "helper", "server")
    key, public = helper_key(folder)
    process = subprocess.Popen(
        [*HELPER, "serve", str(folder / "journal"), "--key", key, "--listen", "localhost:0",
         "--authority", own.authority, "--certificate", own.certificate,
         "--private-key", own.private_key],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        port = process.stderr.readline().split()[-1]
        files = [f"localhost:{port}", server.authority, server.certificate, server.private_key]
        yield {"helper": public, "helper-files": " ".join(files)}
    finally:
        process.terminate()
        process.wait()


def helper_key(folder: Path) -> tuple[str, str]:
    """A helper's key file, and its public identity."""
    key = folder / "helper.key"
    if not key.exists():
        subprocess.run([*HELPER, "keygen", str(key)], check=True, capture_output=True)
    return str(key), key.with_name("helper.key.pub").read_text().strip()


@contextlib.contextmanager
def watched(deployment: deploy.Deployment) -> Iterator[None]:
    """Note when SuperNodes receive requests and find answers, by their logs."""
    ended, names = threading.Event(), {"Receiving: ": "received", "Sending: ": "sending"}
    logs = [deployment.folder / f"client{client}.log" for client in range(CLIENTS)]
    read = [log.stat().st_size for log in logs]

    def watch() -> None:
        while not ended.wait(0.02):
            for client, log in enumerate(logs):
                with open(log, "rb") as file:
                    file.seek(read[client])
                    new = file.read()
                read[client] += len(whole := new[: new.rfind(b"\n") + 1])
                with open(deployment.folder / f"moments.{client}", "a") as file:
                    for line in whole.decode(errors="replace").splitlines():
                        file.writelines(
                            f"{name} {time.time():.4f}\n" for n, name in names.items() if n in line
                        )

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def parts(folder: Path, rounds: int) -> dict[str, float]:
    """Mean seconds of each part of a message, without the messages of round 1."""

    def moments(name: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for line in (folder / f"moments.{name}").read_text().splitlines():
            what, at = line.split()
            found.setdefault(what, []).append(float(at))
        return {what: sorted(times) for what, times in found.items()}

    pushed, sums = moments("server")["pushed"], dict.fromkeys(PARTS, 0.0)
    # The last request has no next one to end it: its answers end the run.
    counted = range(len(pushed) - len(pushed) // rounds * (rounds - 1), len(pushed) - 1)
    for client in range(CLIENTS):
        one = {"pushed": pushed, **moments(str(client))}
        if any(len(one[name]) != len(pushed) for name in PARTS):
            raise RuntimeError(f"Expected each moment of each message once, see {folder}.")
        for number in counted:
            times = [one[name][number] for name in PARTS] + [pushed[number + 1]]
            for name, begun, done in zip(PARTS, times[:-1], times[1:], strict=True):
                sums[name] += (done - begun) / len(counted) / CLIENTS
    return sums


def measured(
    deployment: deploy.Deployment, way: str, rounds: int, helper: Mapping[str, str]
) -> tuple[list[float], dict[str, float]]:
    """Seconds of each round of one run, and of the parts of its messages."""
    folder, results = deployment.folder, deployment.folder / "seconds.json"
    app = folder / "app"
    shutil.rmtree(app, ignore_errors=True)
    results.unlink(missing_ok=True)
    template = EXAMPLES / "flower_template"
    shutil.copytree(template, app, ignore=shutil.ignore_patterns("__pycache__"))
    text = (app / "pyproject.toml").read_text()
    key = "[tool.flwr.app.config]\n"
    (app / "pyproject.toml").write_text(
        # A run sets known keys only.
        text.replace(key, f"{key}" + "".join(f'{name} = ""\n' for name in KEYS))
    )
    (app / "private_app" / "client_app.py").write_text(CLIENT)
    (app / "private_app" / "server_app.py").write_text(SERVER)
    moments = folder / "moments"
    for old in folder.glob("moments.*"):
        old.unlink()
    settings = {"way": way, "num-server-rounds": rounds, "results": str(results),
                "moments": str(moments), **helper}  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    (folder / "run.toml").write_text("".join(lines))
    with watched(deployment):
        run = deployment.start(
            f"run-{way}", "flwr", "run", "app", "here", "--stream", "--run-config", "run.toml"
        )
        run.wait(400 * rounds)
    if not results.exists():
        raise RuntimeError(f"Expected a run that ends well, see {folder}/run-{way}.log.")
    return json.loads(results.read_text()), parts(folder, rounds)


def main() -> None:
    """Deploy once, run the ways in turn, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4, help="of a run, from 3 (default 4)")
    parser.add_argument("--times", type=int, default=2, help="runs of each way (default 2)")
    parser.add_argument("--save", default="flower_rounds", help="name of the results' file")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)}")
    options = parser.parse_args()
    if options.rounds < 3 or options.times < 1 or not {*options.ways} <= {*WAYS}:
        parser.error(f"Expected three rounds or more, and ways of {', '.join(WAYS)}.")
    named = {*options.ways, *(WAYS[way][2] for way in options.ways)} or {*WAYS}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("flower_rounds.py: Ended by a signal."))
    folder = Path(tempfile.mkdtemp(prefix="flower-rounds-"))
    deployment = deploy.Deployment(folder, CLIENTS, EXAMPLES / "flower_template")
    seconds: dict[str, list[list[float]]] = {way: [] for way in WAYS if way in named}
    messages: dict[str, list[dict[str, float]]] = {way: [] for way in seconds}
    try:
        deployment.start_superlink()
        deployment.register()
        deployment.start_supernodes(1e9)
        for _, (way, runs) in product(range(options.times), seconds.items()):
            with helper_service(folder) as helper:
                times, of_message = measured(deployment, way, options.rounds, helper)
                runs.append(times)
                messages[way].append(of_message)
                print(f"{way:14}", ", ".join(f"{s:.1f}" for s in runs[-1]), flush=True)
        save(options.save, {"clients": CLIENTS, "ways": summary(seconds, messages)})
        shutil.rmtree(folder, ignore_errors=True)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"flower_rounds.py: {error}")
    finally:
        deployment.end_all()


def summary(
    seconds: dict[str, list[list[float]]], messages: dict[str, list[dict[str, float]]]
) -> dict[str, dict]:
    """Mean and median of each way's rounds from the second on, and the mean over FedAvg's."""
    later = {way: [s for run in runs for s in run[1:]] for way, runs in seconds.items()}
    mean = {way: statistics.mean(found) for way, found in later.items()}
    rows = {}
    for way, runs in seconds.items():
        what, count, plain = WAYS[way]
        of_message = {name: statistics.mean(p[name] for p in messages[way]) for name in PARTS}
        over = mean[way] / mean[plain]
        print(f"| {what} | {count} | {mean[way]:.1f} | {over:.2f} |")
        median = statistics.median(later[way])
        rows[way] = {"what": what, "messages": count, "seconds": runs, "mean": mean[way],
                     "median": median, "over_fedavg": over, "parts": of_message}  # fmt: skip
    for name, what in PARTS.items():
        print(f"| {what} |", " | ".join(f"{row['parts'][name]:.2f}" for row in rows.values()), "|")
    return rows


if __name__ == "__main__":
    main()

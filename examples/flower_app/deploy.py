"""A whole deployment on this machine, for the time of one run.

A SuperLink over TLS, SuperNodes that are separate processes with registered keys, and secure sums
with signed keys, among the clients or with a helper's service; all in a temporary folder, on
127.0.0.1. The script ends every process that it starts. It was written for flwr 1.41.

    python deploy.py --clients 4 --kill-client 2 --set num-server-rounds=5
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from credentials import make_certificates, make_keys

COLOUR = re.compile(r"\x1b\[\d*m")
APP = Path(__file__).resolve().parent
FEW = {
    "num-server-rounds": 3, "stop-at-epsilon": 0.0, "neighbours": 0, "round-timeout": 60.0,
    "step-timeout": 60.0,
}  # fmt: skip
"""Settings for a few clients, unless `--set` overrides them."""

OF_THIS_APP = {"learning-rate": 1.5, "margin": 0.02}
"""More of them, for the app beside this script."""

SHOWN = re.compile(
    r"randquant: |After round|ROUND \d|(Record|results): \{'accuracy|ERROR|Traceback"
)
"""Lines of the server's log that are printed; the folder's `run.log` has all."""

HELPER = (sys.executable, "-m", "randquant", "helper")


def main() -> None:
    """Deploy, train, print the results, and end all processes."""
    options = _options()
    for request in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(request, lambda *_: sys.exit("deploy.py: Ended by a signal."))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    folder = Path(options.folder or tempfile.mkdtemp(prefix="flower-app-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"deploy.py: Expected an empty folder, got {folder}.")
    deployment = Deployment(folder, options.clients, options.app, options.examples)
    try:
        deployment.start_superlink()
        deployment.register()
        if options.helper:
            deployment.start_helper(options.epsilon)
        deployment.start_supernodes(options.epsilon, options.sites)
        deployment.write_app(options.set, options.data_dir or options.sites)
        for _ in range(options.runs):
            if results := deployment.run(options.kill_client, options.kill_server):
                report(results)
        if options.results:
            shutil.copy(folder / "results.json", options.results)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"deploy.py: {error}")
    except KeyboardInterrupt:
        sys.exit("deploy.py: Interrupted.")
    finally:
        deployment.end_all()
        if not options.folder:
            shutil.rmtree(folder, ignore_errors=True)


class Deployment:
    """Flower's processes, with all their files in one folder.

    Args:
        folder: an existing folder.
        clients: how many SuperNodes.
        app: the folder of the app.
        examples: the public number of an app that protects one example; None for a whole client.
    """

    def __init__(self, folder: Path, clients: int, app: Path, examples: int | None = None) -> None:
        self.folder, self.clients, self.app = folder, range(clients), app.resolve()
        self.examples = examples
        self.helper: dict[str, str] = {}  # its identity, and what the server needs
        self.port, *self.node_ports = free_ports(1 + clients)
        self.nodes: list[int] = []  # their numbers at the SuperLink
        self.known: dict[str, Any] = {}  # the app's settings
        self.started: list[subprocess.Popen] = []
        self._stopping = threading.Event()

    def start(self, name: str, *command: str) -> subprocess.Popen:
        """Start a process in its own session, so that its children can be ended with it."""
        binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {
            **os.environ, "PATH": binaries, "FLWR_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }  # fmt: skip
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.started.append(process)
        return process

    def start_superlink(self) -> None:
        """Start the SuperLink; its database survives it."""
        if not (self.folder / "ca.pem").exists():
            make_certificates(self.folder)
        (self.folder / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            f"root-certificates = {json.dumps(str(self.folder / 'ca.pem'))}\n"
        )
        self.superlink = self.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem",
            "--ssl-keyfile", "server.key", "--enable-supernode-auth",
            "--database", "superlink.db", "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self._wait(self.superlink, "The SuperLink", lambda: listens(self.port))
        print(f"SuperLink: process {self.superlink.pid}, 127.0.0.1:{self.port}, TLS.")

    def register(self) -> None:
        """Create each client's keys, register its SuperNode, and write the directory of all."""
        identities = [make_keys(self.folder, client) for client in self.clients]
        calls = [
            self.start(f"register{client}", "flwr", "supernode", "register", f"node{client}.pub",
                       "here", "--format", "json")
            for client in self.clients
        ]  # fmt: skip
        for client, call in enumerate(calls):
            call.wait(300)
            answer = self._log(f"register{client}")
            number = re.search(r'"node-id": "?(\d+)', answer)
            if not number:
                raise RuntimeError(f"Expected SuperNode {client} to be registered, got: {answer}")
            self.nodes.append(int(number[1]))
        directory = {str(n): key for n, key in zip(self.nodes, identities, strict=True)}
        (self.folder / "directory.json").write_text(json.dumps(directory, indent=2))

    def start_helper(self, epsilon: float = math.inf) -> None:
        """Start a helper of secure sums, which knows all clients' public keys."""
        tls = self.folder / "tls"
        for call in (("keygen", "helper.key"), ("certificates", str(tls))):
            subprocess.run([*HELPER, *call], cwd=self.folder, check=True, capture_output=True)
        port = free_ports(1)[0]
        of_one = [] if self.examples is None else ["--examples", str(self.examples)]
        process = self.start(
            "helper", *HELPER, "serve", "journal", "--key", "helper.key",
            "--listen", f"localhost:{port}", "--authority", f"{tls}/authority.pem",
            "--certificate", f"{tls}/helper.pem", "--private-key", f"{tls}/helper-tls.key",
            "--directory", "directory.json", "--epsilon", str(epsilon), *of_one,
        )  # fmt: skip
        self._wait(process, "The helper", lambda: "listens on port" in self._log("helper"))
        files = (tls / name for name in ("authority.pem", "server.pem", "server-tls.key"))
        self.helper = {
            "identity": (self.folder / "helper.key.pub").read_text().strip(),
            "server": " ".join([f"localhost:{port}", *map(str, files)]),
        }
        print(f"Helper: process {process.pid}, localhost:{port}, TLS.")

    def start_supernodes(self, epsilon: float, sites: str = "") -> None:
        """Start the clients. Each has its own account, and requires all others as neighbours.

        Args:
            epsilon: each client's limit.
            sites: folder of the clients' own files, site0.csv and so on.
        """
        self.supernodes = []
        for client, port in zip(self.clients, self.node_ports, strict=True):
            config = {
                "partition-id": client,
                "num-partitions": len(self.clients),
                "randquant-all-neighbours": True,
                "randquant-epsilon": epsilon,
                "randquant-ledger": str(self.folder / f"account{client}"),
                "randquant-identity": str(self.folder / f"identity{client}.pem"),
                "randquant-directory": str(self.folder / "directory.json"),
            }
            if sites:
                config["data"] = str(Path(sites).resolve() / f"site{client}.csv")
            if self.helper:
                config["randquant-helper"] = self.helper["identity"]
            if self.examples is not None:
                config |= {"randquant-examples": self.examples, "randquant-clip-norm": 1.0}
            node = self.start(
                f"client{client}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
                "--root-certificates", "ca.pem",
                "--auth-supernode-private-key", f"node{client}.key", "--port", str(port),
                "--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items()),
            )  # fmt: skip
            self.supernodes.append(node)
        for client, node in enumerate(self.supernodes):
            log, number = f"client{client}", f"SuperNode ID: {self.nodes[client]}"
            self._wait(node, f"SuperNode {client}", lambda: number in self._log(log))  # noqa: B023
            print(f"Client {client}: process {node.pid}, node {self.nodes[client]}.")

    def write_app(self, settings: Iterable[str], data_dir: str) -> None:
        """Copy the app, which `flwr run` may change, and write its settings for this run."""
        shutil.copytree(
            self.app, self.folder / "app", ignore=shutil.ignore_patterns("__pycache__"),
            dirs_exist_ok=True,
        )  # fmt: skip
        own = tomllib.loads((self.app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        self.known = own.get("config", {})
        config: dict[str, Any] = {
            **FEW,
            **(OF_THIS_APP if self.app == APP else {}),
            "num-partitions": len(self.clients),
            "cohort": max(2, len(self.clients) - 1),  # one may be lost
            **dict.fromkeys(
                ("data-dir", "data"), str(Path(data_dir).resolve()) if data_dir else ""
            ),
            "helper": self.helper.get("server", ""),
            "stable-numbers": True,  # SuperNodes are registered, and the database is kept
            "folder": str(self.folder / "server"),
            "results": str(self.folder / "results.json"),
        }
        config = {name: value for name, value in config.items() if name in self.known}
        for setting in settings:
            name, _, value = setting.partition("=")
            try:
                config[name] = json.loads(value)
            except ValueError:
                config[name] = value
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in config.items()]
        (self.folder / "run.toml").write_text("".join(lines))

    def run(self, kill_client: int, kill_server: int) -> dict[str, Any]:
        """Run the app to its end; return what it measured, if it writes that.

        Args:
            kill_client: round in which the last client is killed; 0 for never.
            kill_server: round in which the SuperLink and its ServerApp are killed and restarted.
        """
        victim = self.clients[-1]
        if kill_client:
            threading.Thread(target=self._kill_client, args=(victim, kill_client)).start()
        process = self._flwr_run()
        if kill_server and self._mid_round(0, kill_server, process):
            end([self.superlink, process], signal.SIGKILL, 0)
            self._show(process)
            print("Killed the SuperLink; it is started again, and so is the run.")
            self.start_superlink()
            process = self._flwr_run()
        self._show(process)
        results, page = self.folder / "results.json", self.folder / "server" / "report.html"
        # An app that writes neither is not checked: `flwr run` ends alike in both cases.
        written = {"results": results, "folder": page}
        wanted = [file for setting, file in written.items() if setting in self.known]
        if wanted and not wanted[0].exists():
            raise RuntimeError(f"Expected a run that ends well; its log ends with: {self._tail()}")
        return json.loads(results.read_text()) if "results" in self.known else {}

    def end_all(self) -> None:
        """End all processes and their children: first with SIGTERM, then with SIGKILL."""
        for request in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(request, signal.SIG_IGN)
        self._stopping.set()
        end(self.started, signal.SIGTERM, 10)
        print(f"Ended: all {len(self.started)} processes that were started, and their children.")

    def _flwr_run(self) -> subprocess.Popen:
        self._shown = (self.folder / "run.log").stat().st_size if self._log("run") else 0
        return self.start(
            "run", "flwr", "run", "app", "here", "--stream", "--run-config", "run.toml"
        )

    def _show(self, process: subprocess.Popen) -> None:
        """Print the important lines of the run's log until its process has ended."""
        done = False
        while not done:
            done = process.poll() is not None
            with open(self.folder / "run.log", "rb") as log:
                log.seek(self._shown)
                new = log.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._shown += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                if SHOWN.search(line):
                    print(re.sub(r"^(INFO|WARNING|ERROR) *:[^\w\[]*", "", COLOUR.sub("", line)))
            if not done:
                time.sleep(0.2)

    def _kill_client(self, client: int, number: int) -> None:
        if self._mid_round(client, number, self.supernodes[client]):
            end([self.supernodes[client]], signal.SIGKILL, 0)
            when = "before it had answered" if self.helper else "after it had shared its keys"
            print(f"Killed client {client} in round {number}, {when}.")

    def _mid_round(self, client: int, number: int, process: subprocess.Popen) -> bool:
        """Wait until a client is in the middle of a round; False if the run ends before.

        It has then received the request to upload. Among clients it has shared its keys before: in
        the first round in two of five messages, for others in the round before.
        """
        while not self._stopping.is_set() and process.poll() is None:
            log = self._log(f"client{client}")
            before = number if self.helper else 3 * number  # messages up to this round's upload
            if log.count("Receiving: train message") >= before:
                return True
            time.sleep(0.1)
        return False

    def _wait(self, process: subprocess.Popen, what: str, ready: Callable[[], bool]) -> None:
        limit = time.monotonic() + 300
        while not ready():
            if process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"Expected {what} to be ready in time, it is not.")
            time.sleep(0.1)

    def _log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _tail(self) -> str:
        return "\n".join(self._log("run").strip().splitlines()[-5:])


def end(processes: list[subprocess.Popen], with_signal: signal.Signals, seconds: float) -> None:
    """Send a signal to processes and all their descendants, and wait until they have ended.

    Processes that still run after `seconds` are killed.
    """
    pids, limit = family(processes), time.monotonic() + seconds
    send(pids, with_signal)
    while left := pids & running().keys():
        if time.monotonic() > limit:
            send(left, signal.SIGKILL)
        time.sleep(0.1)
    for process in processes:
        process.wait()


def send(pids: set[int], with_signal: signal.Signals) -> None:
    """Send a signal to those processes that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, with_signal)


def family(processes: list[subprocess.Popen]) -> set[int]:
    """Numbers of the processes of some groups, and of all that descend from them."""
    table, groups = running(), {process.pid for process in processes}
    members: set[int] = set()
    new = {pid for pid, (_, group) in table.items() if group in groups}
    while new:
        members |= new
        new = {pid for pid, (parent, _) in table.items() if parent in members} - members
    return members


def running() -> dict[int, tuple[int, int]]:
    """Parent and group of every running process, by number."""
    processes = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent, group = stat.read_text().rpartition(")")[2].split()[:3]
            if state != "Z":
                processes[int(stat.parent.name)] = int(parent), int(group)
    return processes


def free_ports(count: int) -> list[int]:
    """Unused ports of 127.0.0.1, none that a system hands out to whoever asks for any."""
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            one, port = stack.enter_context(socket.socket()), random.randrange(10_000, 32_000)
            with contextlib.suppress(OSError):  # somebody listens there
                one.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def listens(port: int) -> bool:
    """Whether a process listens at a port of 127.0.0.1."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def report(results: dict[str, Any]) -> None:
    """Print what the server measured."""
    print("\nround  accuracy  clients  dropped  seconds")
    for number, row in results["rounds"].items():
        counts = [f"{row[name]:>7g}" if name in row else " " * 7 for name in ("clients", "dropped")]
        accuracy, seconds = row["accuracy"], row["seconds"]
        print(f"{number:>5}  {accuracy:8.4f}  {counts[0]}  {counts[1]}  {seconds:7.1f}")
    print(f"\n{results['guarantee']}")
    if results["stopped"]:
        print(f"Training ended {results['stopped']}.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=4, help="SuperNodes (default 4)")
    parser.add_argument(
        "--kill-client",
        type=int,
        default=0,
        metavar="ROUND",
        help="kill the last client in that round",
    )
    parser.add_argument(
        "--kill-server", type=int, default=0, metavar="ROUND",
        help="kill the SuperLink in that round, restart it, and continue",
    )  # fmt: skip
    parser.add_argument(
        "--epsilon", type=float, default=1e6, help="each client's own limit (default 1e6)"
    )
    parser.add_argument(
        "--examples", type=int, metavar="N", help="limits are of one example: the public number"
    )
    parser.add_argument(
        "--helper", action="store_true", help="start a helper's service too, for secure sums"
    )
    parser.add_argument(
        "--data-dir", default="", help="folder of data files, for data sets that need one"
    )
    parser.add_argument(
        "--sites", default="", metavar="FOLDER", help="of the clients' own files, site0.csv ..."
    )
    parser.add_argument("--app", type=Path, default=APP, help="folder of the app (default this)")
    parser.add_argument("--runs", type=int, default=1, help="one after the other (default 1)")
    parser.add_argument("--folder", help="keep keys, logs and the run there")
    parser.add_argument("--results", help="a JSON file for what was measured")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the app's configuration"
    )
    options = parser.parse_args()
    if options.clients < 2:
        parser.error("Expected two clients or more: a sum of one hides nothing.")
    if not Path("/proc/self/stat").exists():
        parser.error("Expected Linux, by whose /proc processes are found again to be ended.")
    return options


if __name__ == "__main__":
    main()

"""Four hospitals train one model on NVFlare's simulator; its log has a patient's guarantee.

python examples/hospitals/run.py --data FOLDER [--epsilon 4] [--rounds 20] [--folder runs/hospitals]
    [--helper HOST:PORT --helper-identity HEX --tls FOLDER]

With a helper the server sees the sum of the hospitals' answers only, and the noise of all of them
hides a patient of any. It is a service of somebody else (randquant helper serve); FOLDER has
authority.pem, server.pem and server-tls.key (randquant helper certificates).

Started again with the same folder it continues where it was killed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from hospital import FEATURES, SITES, HospitalExecutor, accuracy, patients, split
from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

import randquant as rq
from randquant.integrations import QuantizeController, QuantizeFilter
from randquant.rounds import TLS, RemoteHelper, WithHelper

DELTA = 1e-5
CLIP_NORM = 1.0
"""Of one patient's gradient, at the server and at every hospital."""


def job(
    data: Path,
    folder: Path,
    epsilon: float,
    rounds: int,
    sums: WithHelper | None = None,
    identity: str | None = None,
    bits: int | None = None,
) -> FedJob:
    """The job: a controller at the server, an executor with a filter at each hospital."""
    sizes = [len(split(*patients(data, site), 0)[0][1]) for site in SITES]
    # Public, and the same at every hospital: their mean is then that over all patients.
    examples = sum(sizes) // len(SITES)
    made = FedJob("hospitals", min_clients=len(SITES))
    made.set_app_packages(["randquant"])
    controller = QuantizeController.for_target(
        FEATURES, epsilon=epsilon, delta=DELTA, rounds=rounds, sites=len(SITES),
        folder=str(folder / "server"), examples=examples, sums=sums,
        privacy=rq.Privacy(bits=bits or "auto", clip_norm=CLIP_NORM),
    )  # fmt: skip
    made.to(controller, SERVER_SITE_NAME)
    made.to(NPModelPersistor(model=[0.0] * FEATURES), SERVER_SITE_NAME, id="persistor")
    for site in SITES:
        made.to(HospitalExecutor(str(data), CLIP_NORM), site, tasks=["train"])
        for kind in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
            each = QuantizeFilter(
                epsilon, str(folder / "sites"), DELTA, examples=examples, helper=identity,
                clip_norm=CLIP_NORM,
            )  # fmt: skip
            made.to(each, site, filter_type=kind, tasks=["train"])
    return made


def helped(address: str, tls: Path) -> WithHelper:
    """Sums with the helper at this address; the folder has the server's TLS files."""
    files = (tls.resolve() / name for name in ("authority.pem", "server.pem", "server-tls.key"))
    return WithHelper(RemoteHelper(address, TLS(*map(str, files))))


def main() -> None:
    """Run the job in this process and processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .csv files")
    parser.add_argument("--folder", type=Path, default=Path("runs/hospitals"))
    parser.add_argument("--epsilon", type=float, default=4.0, help="of a patient")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bits", type=int, help="a coordinate: by default 5, or 20 in sums")
    parser.add_argument("--helper", help="HOST:PORT of a helper of secure sums")
    parser.add_argument("--helper-identity", help="what randquant helper keygen printed")
    parser.add_argument("--tls", type=Path, help="folder of the server's certificates")
    given = parser.parse_args()
    if missing := [site for site in SITES if not (given.data / f"{site}.csv").is_file()]:
        parser.error(f"Expected {missing[0]}.csv in {given.data}, got no such file.")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    sums = helped(given.helper, given.tls) if given.helper else None
    made = job(
        given.data.resolve(), folder, given.epsilon, given.rounds, sums, given.helper_identity,
        given.bits,
    )  # fmt: skip
    made.simulator_run(str(folder / "workspace"), threads=len(SITES))
    report(given.data, folder / "workspace" / "server")


def ended_well(server: Path) -> Path:
    """The folder of a job's results; it ends the script where the job has failed."""
    if errors := (server / "error_log.txt").read_text():
        sys.exit(f"Expected a job that ends well, got: {errors.splitlines()[0]}")
    return server / "simulate_job"


def report(data: Path, server: Path) -> None:
    """Print each hospital's test accuracy."""
    weights = np.load(ended_well(server) / "models" / "server.npy")
    for site in SITES:
        _, (x, y) = split(*patients(data, site), 0)
        print(f"{site}: {accuracy(weights, x, y):.1%} of {len(y)} patients right")


if __name__ == "__main__":
    main()

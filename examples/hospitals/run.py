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
from typing import Literal

import numpy as np
from hospital import FEATURES, SITES, HospitalExecutor, accuracy, patients, split
from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

from randquant.aggregation import UpdateMechanism
from randquant.integrations import QuantizeController, QuantizeFilter
from randquant.mechanisms import UpdateSetting
from randquant.planning import gaussian_multiplier, tune_update
from randquant.rounds import TLS, RemoteHelper, WithHelper

DELTA = 1e-5


def planned(
    epsilon: float,
    rounds: int,
    examples: int,
    trust: Literal["local", "aggregate"] = "local",
    bits: int | None = None,
) -> UpdateMechanism:
    """The mechanism with the least noise that keeps a patient's epsilon.

    By itself a site sends 5 bits a coordinate; in sums, where every hospital's noise hides all
    patients, integers of 20 bits with a share of the noise. Up to 8 bits are sums of random bits.
    """
    bits = bits or (5 if trust == "local" else 20)
    name = "pbm" if bits <= 8 else "skellam"
    setting = UpdateSetting(dimension=FEATURES, cohort=len(SITES), bits=bits, trust=trust)
    deviation = gaussian_multiplier(epsilon, DELTA, rounds) * 2 / examples
    tuned = tune_update(
        name, setting, epsilon, DELTA, rounds, deviation=deviation, examples=examples
    )
    return tuned.calibration.mechanism


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
    examples = min(len(split(*patients(data, site), 0)[0][1]) for site in SITES)
    mechanism = planned(epsilon, rounds, examples, "local" if sums is None else "aggregate", bits)
    made = FedJob("hospitals", min_clients=len(SITES))
    made.set_app_packages(["randquant"])
    controller = QuantizeController(
        mechanism.record(), rounds, str(folder / "server"), epsilon, DELTA,
        examples=examples, min_clients=len(SITES), sums=sums,
    )  # fmt: skip
    made.to(controller, SERVER_SITE_NAME)
    made.to(NPModelPersistor(model=[0.0] * FEATURES), SERVER_SITE_NAME, id="persistor")
    for site in SITES:
        made.to(HospitalExecutor(str(data), mechanism.clip_norm), site, tasks=["train"])
        for kind in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
            each = QuantizeFilter(
                epsilon, str(folder / "sites"), DELTA, examples=examples, helper=identity,
                clip_norm=mechanism.clip_norm,
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

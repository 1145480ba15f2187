"""Four hospitals train one model on NVFlare's simulator; its log has a patient's guarantee.

python examples/hospitals/run.py --data FOLDER [--epsilon 4] [--rounds 20] [--folder runs/hospitals]

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

from randquant.aggregation.mechanism import UpdateMechanism
from randquant.integrations.nvflare import QuantizeController, QuantizeFilter
from randquant.mechanisms.tuning import UpdateSetting
from randquant.planning.limits import gaussian_multiplier
from randquant.planning.tuning.update import tune_update

DELTA = 1e-5


def planned(epsilon: float, rounds: int, examples: int) -> UpdateMechanism:
    """The mechanism in 5 bits a coordinate with the least noise that keeps a patient's epsilon."""
    setting = UpdateSetting(dimension=FEATURES, cohort=len(SITES), bits=5, trust="local")
    deviation = gaussian_multiplier(epsilon, DELTA, rounds) * 2 / examples
    tuned = tune_update(
        "pbm", setting, epsilon, DELTA, rounds, deviation=deviation, examples=examples
    )
    return tuned.calibration.mechanism


def job(data: Path, folder: Path, epsilon: float, rounds: int) -> FedJob:
    """The job: a controller at the server, an executor with a filter at each hospital."""
    examples = min(len(split(*patients(data, site), 0)[0][1]) for site in SITES)
    mechanism = planned(epsilon, rounds, examples)
    made = FedJob("hospitals", min_clients=len(SITES))
    made.set_app_packages(["randquant"])
    controller = QuantizeController(
        mechanism.record(), rounds, str(folder / "server"), epsilon, DELTA,
        examples=examples, min_clients=len(SITES),
    )  # fmt: skip
    made.to(controller, SERVER_SITE_NAME)
    made.to(NPModelPersistor(model=[0.0] * FEATURES), SERVER_SITE_NAME, id="persistor")
    for site in SITES:
        made.to(HospitalExecutor(str(data), mechanism.clip_norm), site, tasks=["train"])
        for kind in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
            each = QuantizeFilter(epsilon, str(folder / "sites"), DELTA, examples=examples)
            made.to(each, site, filter_type=kind, tasks=["train"])
    return made


def main() -> None:
    """Run the job in this process and processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .csv files")
    parser.add_argument("--folder", type=Path, default=Path("runs/hospitals"))
    parser.add_argument("--epsilon", type=float, default=4.0, help="of a patient")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    if missing := [site for site in SITES if not (given.data / f"{site}.csv").is_file()]:
        parser.error(f"Expected {missing[0]}.csv in {given.data}, got no such file.")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    made = job(given.data.resolve(), folder, given.epsilon, given.rounds)
    made.simulator_run(str(folder / "workspace"), threads=len(SITES))
    report(given.data, folder / "workspace" / "server")


def report(data: Path, server: Path) -> None:
    """Print each hospital's test accuracy, or why the job has failed."""
    if errors := (server / "error_log.txt").read_text():
        sys.exit(f"run.py: Expected a job that ends well, got: {errors.splitlines()[0]}")
    weights = np.load(server / "simulate_job" / "models" / "server.npy")
    for site in SITES:
        _, (x, y) = split(*patients(data, site), 0)
        print(f"{site}: {accuracy(weights, x, y):.1%} of {len(y)} patients right")


if __name__ == "__main__":
    main()

"""Four hospitals train a model of torch on NVFlare's simulator, with a guarantee for every patient.

python examples/nvflare_hospitals/job.py --data FOLDER [--epsilon 2] [--rounds 20]
    [--folder runs/nvflare-hospitals]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner

from randquant.integrations import QuantizeController, QuantizeFilter

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from train import Network  # noqa: E402

SITES = ("cleveland", "hungarian", "switzerland", "va")
PATIENTS, CLIP_NORM, DELTA = 230, 1.0, 1e-5
"""Public numbers: all patients over the number of hospitals, the threshold of one patient's
gradient, and delta."""


def job(data: Path, folder: Path, epsilon: float, rounds: int) -> FedJob:
    """A controller at the server; a script and a filter at each hospital."""
    made = FedJob("hospitals", min_clients=len(SITES))
    made.set_app_packages(["randquant"])
    controller = QuantizeController.for_target(
        Network(), epsilon=epsilon, delta=DELTA, rounds=rounds, sites=len(SITES),
        folder=str(folder / "server"), examples=PATIENTS,
    )  # fmt: skip
    made.to_server(controller)
    made.to_server(PTModel(Network()))
    options = f"--data {data} --clip-norm {CLIP_NORM}"
    for site in SITES:
        made.to(ScriptRunner(str(HERE / "train.py"), options), site)
        for kind in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
            limits = QuantizeFilter(
                epsilon, str(folder / "sites"), DELTA, examples=PATIENTS, clip_norm=CLIP_NORM
            )
            made.to(limits, site, filter_type=kind, tasks=["train"])
    return made


def main() -> None:
    """Run the job in this process and processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .csv files")
    parser.add_argument("--folder", type=Path, default=Path("runs/nvflare-hospitals"))
    parser.add_argument("--epsilon", type=float, default=2.0, help="of a patient")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    folder = given.folder.resolve()
    made = job(given.data.resolve(), folder, given.epsilon, given.rounds)
    made.simulator_run(str(folder / "workspace"), threads=len(SITES))
    model = folder / "workspace/server/simulate_job/app_server/FL_global_model.pt"
    if not model.exists():
        sys.exit("Expected a model at the end, got none: an error above says why the job ended.")
    print(f"{model} has the model")


if __name__ == "__main__":
    main()

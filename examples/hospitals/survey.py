r"""Four hospitals' table 1 as a job on NVFlare's simulator, summed with a helper.

randquant helper keygen helper.key && randquant helper certificates tls
randquant helper serve JOURNAL --key helper.key --authority tls/authority.pem \
    --certificate tls/helper.pem --private-key tls/helper-tls.key
python examples/hospitals/survey.py --data FOLDER --helper localhost:9443 --tls tls \
    --helper-identity "$(cat helper.key.pub)" [--epsilon 1]

The server sees the sum of the hospitals' answers only, whose noise hides a patient of any.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from run import ended_well, helped
from table_one import QUERIES, SITES, patients
from table_site import TableExecutor

import randquant as rq
from randquant.integrations import JobOptions, QuantizeController, QuantizeFilter
from randquant.rounds import WithHelper

DELTA = 1e-6


def job(
    data: Path, folder: Path, mechanism: rq.SurveyMechanism, sums: WithHelper, identity: str
) -> FedJob:
    """The job: a controller at the server, an executor with a filter at each hospital."""
    epsilon, most = mechanism.terms.guarantee.epsilon, mechanism.terms.most
    made = FedJob("table", min_clients=len(SITES))
    made.set_app_packages(["randquant"])
    controller = QuantizeController(
        mechanism.record(), 1, str(folder / "server"), delta=DELTA, examples=most,
        min_clients=len(SITES), options=JobOptions(learning_rate=1.0),
        sums=sums,
    )  # fmt: skip
    made.to(controller, SERVER_SITE_NAME)
    made.to(NPModelPersistor(model=[0.0] * mechanism.dimension), SERVER_SITE_NAME, id="persistor")
    for site in SITES:
        made.to(TableExecutor(str(data), mechanism.survey), site, tasks=["train"])
        for kind in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
            each = QuantizeFilter(
                epsilon, str(folder / "sites"), DELTA, examples=most, helper=identity
            )
            made.to(each, site, filter_type=kind, tasks=["train"])
    return made


def main() -> None:
    """Run the job in this process and processes of its own, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .csv files")
    parser.add_argument("--helper", required=True, help="HOST:PORT of the helper")
    parser.add_argument("--helper-identity", required=True, help="what helper keygen printed")
    parser.add_argument("--tls", type=Path, required=True, help="folder of the certificates")
    parser.add_argument("--folder", type=Path, default=Path("runs/table"))
    parser.add_argument("--epsilon", type=float, default=1.0, help="of a patient")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [len(patients(given.data, site)["age"]) for site in SITES]  # public
    terms = rq.survey(
        QUERIES, given.epsilon, DELTA, "aggregate", clients=len(SITES), records=sum(sizes),
        unit="example", most=max(sizes),
    )  # fmt: skip
    mechanism = rq.SurveyMechanism(terms)
    sums = helped(given.helper, given.tls)
    made = job(given.data.resolve(), folder, mechanism, sums, given.helper_identity)
    made.simulator_run(str(folder / "workspace"), threads=len(SITES))
    mean = np.load(ended_well(folder / "workspace" / "server") / "models" / "server.npy")
    print(mechanism.table(mean, len(SITES), sum(sizes)))


if __name__ == "__main__":
    main()

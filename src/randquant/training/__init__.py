"""Federated training: clients, server, cohorts, data, runs.

`randquant.train` is the front door. The names here train in folders, by a configuration: a
TrainConfig names the data set, the model and all settings of a run.
"""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.training.config import TrainConfig
    from randquant.training.data.datasets import Dataset, register_dataset
    from randquant.training.data.datasets import load as load_dataset
    from randquant.training.data.datasets import split as split_dataset
    from randquant.training.models import build as build_model
    from randquant.training.records import RoundMetrics
    from randquant.training.runs.execution import create as create_run
    from randquant.training.runs.execution import execute as train_run
    from randquant.training.runs.execution import load_parameters
    from randquant.training.runs.status import Status as RunStatus
    from randquant.training.runs.status import notes as notes_on_runs
    from randquant.training.runs.status import read as read_run
    from randquant.training.settings import check as check_settings
    from randquant.training.settings import config as config_of
    from randquant.training.settings import flat as settings_of

__all__ = [
    "Dataset",
    "RoundMetrics",
    "RunStatus",
    "TrainConfig",
    "build_model",
    "check_settings",
    "config_of",
    "create_run",
    "load_dataset",
    "load_parameters",
    "notes_on_runs",
    "read_run",
    "register_dataset",
    "settings_of",
    "split_dataset",
    "train_run",
]

lazily(__name__)

"""Federated training: clients, server, cohorts, data, runs.

`randquant.train` is the front door. The names here train in folders, by a configuration: a
TrainConfig has all settings of a run, and RunInputs what no file holds: model, data and loss.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.local_training.problem import Problem, make_problem
    from randquant.training.algorithm import (
        ABSENT_BATCH_SIZE,
        Algorithm,
        OptimizerStep,
        RoundCollector,
        State,
        distributed_sgd,
        from_tensors,
        to_tensors,
        torch_optimizer,
    )
    from randquant.training.config import (
        PLACES,
        Server,
        Task,
        TrainConfig,
        check_config,
        configured_mechanism,
        mechanism_fingerprint,
    )
    from randquant.training.config import flat as settings_of
    from randquant.training.execution import bind, load_parameters
    from randquant.training.execution import create as create_run
    from randquant.training.execution import execute as train_run
    from randquant.training.federated import Run, train
    from randquant.training.run_store import (
        RoundMetrics,
        RunRecord,
        RunStore,
        RunSummary,
        SentRounds,
        StoredRun,
        is_run,
        notes_on_runs,
        read_finished,
        read_run,
    )
    from randquant.training.run_store import Status as RunStatus
    from randquant.training.schedule import (
        Schedule,
        capped_cohorts,
        sample,
        sample_capped,
        sample_cohort,
        sample_hidden,
        sample_poisson,
    )
    from randquant.training.setup import (
        RunInputs,
        TrainingSetup,
        about_constant,
        about_steps,
        best_constant,
        majority_share,
        prepare,
    )

__all__ = [
    "Problem",
    "RoundMetrics",
    "RunInputs",
    "RunStatus",
    "Task",
    "TrainConfig",
    "create_run",
    "is_run",
    "load_parameters",
    "make_problem",
    "notes_on_runs",
    "read_run",
    "settings_of",
    "train_run",
]

lazily(__name__)

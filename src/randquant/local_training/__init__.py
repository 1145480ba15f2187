"""What a client does in a round: its examples, its steps from the global model, many at once."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.local_training.client import (
        MAX_GROUP_CLIENTS_ON_CPU,
        MIN_IMBALANCE_RATIO,
        ByClass,
        Learner,
        auc,
        balanced_accuracy,
    )
    from randquant.local_training.curvature import small_step, step_length
    from randquant.local_training.data import StoredExamples, as_examples
    from randquant.local_training.group_steps import KNOWN_ATTENTION
    from randquant.local_training.local import Evaluation, Local, Standardize, Work
    from randquant.local_training.problem import make_problem, select_parts
    from randquant.local_training.standardize import (
        StandardizationQuery,
        Standardized,
        ask_statistics,
        plan_query,
    )

lazily(__name__)

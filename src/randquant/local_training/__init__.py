"""What a client does in a round: its examples, its steps from the global model, many at once."""

from typing import TYPE_CHECKING

from randquant._internal.lazy_imports import lazily

if TYPE_CHECKING:
    from randquant.local_training.client import LIGHT_GROUP, Learner
    from randquant.local_training.curvature import small_step, step_length
    from randquant.local_training.examples import StoredExamples, examples_of
    from randquant.local_training.local import Local
    from randquant.local_training.problem import parts_of, problem_of
    from randquant.local_training.raw_units import Standardized
    from randquant.local_training.standardize import (
        StandardizationQuery,
        Standardize,
        ask_statistics,
        plan_query,
    )
    from randquant.local_training.together import KNOWN_ATTENTION
    from randquant.local_training.work import Evaluation, Work

lazily(__name__)

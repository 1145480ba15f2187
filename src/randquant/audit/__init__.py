"""Attacks on the real pipeline that bound epsilon from below."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.audit.events import (
        Outcomes,
        best_event,
        ceiling,
        in_words,
        least_epsilon,
        proportion,
        statistics,
    )
    from randquant.audit.pipeline import MIN_TRIAL_COUNT, Audit, cohort_inputs, worst_inputs

lazily(__name__)

"""Attacks on the real pipeline that bound epsilon from below."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.audit.attack import (
        MIN_TRIAL_COUNT,
        Audit,
        Outcomes,
        best_event,
        ceiling,
        cohort_inputs,
        in_words,
        least_epsilon,
        proportion,
        statistics,
        worst_inputs,
    )

lazily(__name__)

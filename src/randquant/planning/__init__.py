"""Which mechanism to take: compare, plan, tune, limits."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.planning.tuning.update import TunedUpdate, tune_update

__all__ = ["TunedUpdate", "tune_update"]

lazily(__name__)

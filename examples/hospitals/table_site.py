"""A hospital's part in a table: its patients as one vector, which the filter protects."""

from __future__ import annotations

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.np.constants import NPConstants
from table_one import patients

import randquant as rq


class TableExecutor(Executor):
    """Answers a task with what the terms of a table make of its patients."""

    def __init__(self, data: str, survey: str) -> None:
        super().__init__()
        self.data, self.survey = data, survey

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The sum of its patients' integers, without noise."""
        if task_name != "train":
            return make_reply(ReturnCode.TASK_UNKNOWN)
        columns = patients(self.data, fl_ctx.get_identity_name())
        update = rq.SurveyMechanism(self.survey).update(columns, rq.Key.generate())
        return DXO(DataKind.WEIGHT_DIFF, {NPConstants.NUMPY_KEY: update}).to_shareable()

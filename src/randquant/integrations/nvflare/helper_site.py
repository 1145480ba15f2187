"""A site as the helper of secure sums: the server's requests to it, and its answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from randquant.integrations.foreign import DamagedFile, logged
from randquant.integrations.helper_member import answered
from randquant.integrations.nvflare.tasks import data_of
from randquant.integrations.protocol import Ask
from randquant.secure_sums.secagg.terms import ProtocolError

TASK = "randquant_helper"
"""Name of the task that a helper's site is given."""

SETTINGS = "randquant_helper.json"
"""The operator's file in the site's folder `local`."""

VARIABLE = "RANDQUANT_HELPER"
"""The environment variable that names another file, for a site without such a folder."""

REQUEST, ANSWER, REFUSAL = "request", "answer", "refusal"


def asking(controller: Controller, fl_ctx: FLContext, abort_signal: Signal, timeout: int) -> Ask:
    """How a controller reaches a site, within so many seconds."""

    def ask(site: int | str, request: bytes) -> bytes:
        received: list[Shareable] = []

        def take(client_task: ClientTask, fl_ctx: FLContext) -> None:
            received.append(client_task.result or Shareable())
            client_task.result = None

        data = DXO(DataKind.APP_DEFINED, {REQUEST: request}).to_shareable()
        task = Task(TASK, data, timeout=timeout, result_received_cb=take)
        controller.broadcast_and_wait(
            task, fl_ctx, [str(site)], min_responses=1, abort_signal=abort_signal
        )
        if not received or received[0].get_return_code() != ReturnCode.OK:
            raise OSError(f"site {logged(site)} does not answer, see its log")
        answer = _data(received[0])
        if isinstance(refusal := answer.get(REFUSAL), str):
            raise ProtocolError(f"The helper: {logged(refusal)}")
        return _bytes(answer, ANSWER)

    return ask


class HelperExecutor(Executor):
    """Answers `QuantizeController` as the helper of secure sums; this site trains nothing.

    Give it the task `randquant_helper`. What it is allowed to answer is in its operator's own file
    `local/randquant_helper.json` (docs/helper-sums.md), or the one that RANDQUANT_HELPER names in
    the environment; a job's configuration says nothing of it.
    """

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The answer to a request; without data where the site's files cannot be used."""
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            reply = {ANSWER: answered(self._settings(fl_ctx), _bytes(_data(shareable), REQUEST))}
        except ProtocolError as error:
            self.log_warning(fl_ctx, f"randquant: refused: {logged(error)}")
            reply = {REFUSAL: str(error)}
        except Exception as error:  # may name files of this machine
            self.log_error(fl_ctx, f"randquant: this helper cannot answer: {logged(error)}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return DXO(DataKind.APP_DEFINED, reply).to_shareable()

    def _settings(self, fl_ctx: FLContext) -> dict[str, Any]:
        workspace: Any = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        own = Path(workspace.get_site_config_dir()) / SETTINGS
        found = json.loads(Path(os.environ.get(VARIABLE, own)).read_text())
        if not isinstance(found, dict):
            raise DamagedFile(f"Expected settings by name in {SETTINGS}, got others.")
        return found


def _data(message: Shareable) -> dict[str, Any]:
    """The fields of a request or an answer; ProtocolError if there are none."""
    try:
        found = data_of(message).data
    except ValueError as error:
        raise ProtocolError(str(error)) from error
    if not isinstance(found, dict):
        raise ProtocolError("Expected fields by name, got something else.")
    return found


def _bytes(fields: dict[str, Any], name: str) -> bytes:
    if not isinstance(value := fields.get(name), bytes):
        raise ProtocolError("Expected a helper's request or answer in bytes, got something else.")
    return value

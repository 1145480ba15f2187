"""The server's side on NVFlare: rounds of protected updates, their mean, and their account."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants

from randquant._internal import locks, validate
from randquant._internal.disk import make_folder
from randquant._internal.serialization import to_json
from randquant.aggregation.layout import StateLayout
from randquant.aggregation.saved import from_record
from randquant.integrations import state
from randquant.integrations.accountant import RoundEvent
from randquant.integrations.foreign import UNREADABLE, logged
from randquant.integrations.nvflare.request import (
    PAYLOAD,
    REQUEST,
    SESSION,
    SESSION_BYTES,
    Request,
    SiteAccountant,
    data_of,
    header_of,
    number,
    site_name,
)
from randquant.privacy.guarantee import Neighboring


class QuantizeController(Controller):
    """Asks all sites for protected updates, and steps along their mean, round after round.

    Sites need `QuantizeFilter`. All sites have equal weight.

    Args:
        mechanism: the `record()` of a mechanism of local trust.
        rounds: rounds of the run, those before a restart included.
        folder: holds the model and the account, `server.state`, written before sites are asked and
            after every round. A job that is started again with the same folder continues.
        stop_at_epsilon: sites whose epsilon would exceed this are not asked; with fewer than
            `min_clients` left, training ends.
        delta, neighboring: of the guarantee.
        examples: fewest examples (patients) of a site, a public number: the limit is then for one
            of them, see `QuantizeFilter`. None: it is for all data of a site.
        learning_rate: the model moves by this times the mean update.
        min_clients: fewest valid answers of a round.
        persistor_id: component that loads the first model, and saves it after every round, and
            where a job that was killed goes on.
        timeout: seconds for a round.
        task_name: of the task that sites train for.
        patience: how many rounds in a row may fail before the job is stopped.

    Guarantees:
        The epsilon that is logged holds for every site, whatever fails: it counts every site that
        was asked. A round either moves the model by the exact mean of the valid answers, or leaves
        it unchanged and logs why.
    """

    def __init__(
        self,
        mechanism: dict[str, Any],
        rounds: int,
        folder: str,
        stop_at_epsilon: float | None = None,
        delta: float = 1e-5,
        neighboring: Neighboring = "replace_one",
        examples: int | None = None,
        learning_rate: float = 1.0,
        min_clients: int = 2,
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
        timeout: int = 600,
        task_name: str = AppConstants.TASK_TRAIN,
        patience: int = 3,
    ) -> None:
        super().__init__()
        self.mechanism, self.folder = to_json(mechanism), str(folder)
        from_record(self.mechanism)  # checks it
        self.rounds = validate.whole("rounds", rounds, low=1)
        self.min_clients = validate.whole("min_clients", min_clients, low=1)
        self.learning_rate = validate.real("learning_rate", learning_rate, above=0)
        self.timeout = validate.whole("timeout", timeout, low=1)
        self.patience = validate.whole("patience", patience, low=1)
        self.stop_at_epsilon, self.delta, self.neighboring = stop_at_epsilon, delta, neighboring
        self.examples, self.persistor_id, self.task_name = examples, persistor_id, task_name
        self._accountant = SiteAccountant(delta, neighboring, stop_at_epsilon, stable=True)
        self._path = Path(folder) / "server.state"
        self._done = 0
        self._session, self._payloads = b"", {}

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Load the first model."""
        self._persistor = self._engine.get_component(self.persistor_id)
        self._learnable = self._persistor.load(fl_ctx)
        weights = self._learnable[ModelLearnableKey.WEIGHTS]
        self._model = {name: np.asarray(array) for name, array in weights.items()}
        layout = StateLayout.of(self._model)
        self._request = Request(from_record(self.mechanism), layout, self.examples)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the rounds that are not done yet, with the folder's model and account if it has them.

        Raises:
            ValueError: the folder's state is damaged, or of another mechanism or model.
            BlockingIOError: another process is training in the folder.
        """
        with contextlib.ExitStack() as stack:
            make_folder(self._path.parent)
            stack.enter_context(locks.folder(self._path.parent))
            if self._path.exists():  # read under the lock: nobody adds a round meanwhile
                self._restore()
                self._persist(fl_ctx)  # this job's persistor has not seen it
                self.log_info(fl_ctx, f"randquant: continuing after round {self._done}.")
            failures = 0
            while self._done < self.rounds and not abort_signal.triggered:
                sites = self._eligible(fl_ctx)
                if len(sites) < self.min_clients:
                    self.log_info(
                        fl_ctx,
                        f"randquant: training ends before round {self._done + 1}: {len(sites)} "
                        f"sites may take part within epsilon {self.stop_at_epsilon}, and "
                        f"{self.min_clients} are needed.",
                    )
                    break
                try:
                    self._round(sites, fl_ctx, abort_signal)
                    failures = 0
                except ValueError as error:
                    failures += 1
                    self.log_error(
                        fl_ctx, f"randquant: a round failed, the model is as before: {error}"
                    )
                    if failures >= self.patience:
                        self.system_panic(f"randquant: {failures} rounds in a row failed.", fl_ctx)
                        return
            self.log_info(fl_ctx, f"randquant: the run, {self._accountant.told()}")

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to stop: the state is on the disk."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable,
        fl_ctx: FLContext,
    ) -> None:  # fmt: skip
        """Ignore an answer that comes too late; it is in the account."""
        self.log_warning(fl_ctx, f"randquant: an answer of {logged(client.name)} came too late.")

    def accept(self, site: str, result: Shareable) -> None:
        """Take one site's answer into the mean of this round.

        Raises:
            ValueError: it is not this site's first answer to this round's request.
        """
        code = header_of(result, ReservedKey.RC)
        if code not in (None, ReturnCode.OK):
            raise ValueError(
                f"Expected an update of {site}, got none ({code}): see the site's log."
            )
        if site in self._payloads:
            raise ValueError(f"Expected one answer of {site} in a round, got a second one.")
        answer = data_of(result)
        payload = answer.data.get(PAYLOAD) if answer.data_kind == DataKind.APP_DEFINED else None
        if not isinstance(payload, bytes):
            raise ValueError(
                f"Expected codes of {site}, got something else: it needs QuantizeFilter."
            )
        self._payloads[site] = self._request.unaddressed(payload, self._session, site)

    def _eligible(self, fl_ctx: FLContext) -> list[str]:
        """Names of the connected sites that a round would not take above the limit."""
        names = []
        for client in self._engine.get_clients():
            try:
                names.append(site_name(client.name))
            except ValueError as error:
                self.log_warning(fl_ctx, f"randquant: a site is left out: {error}")
        names.sort()
        if self.stop_at_epsilon is None:
            return names
        return [n for n in names if not self._accountant.would_exceed(self._event([n]))]

    def _event(self, sites: list[str]) -> RoundEvent:
        return RoundEvent(self._request, frozenset(map(number, sites)))

    def _round(self, sites: list[str], fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._session, self._payloads = os.urandom(SESSION_BYTES), {}
        self._accountant.compose(self._event(sites))
        self._save()  # once asked, a site may send whatever happens here
        task = Task(
            self.task_name, self._task_data(), timeout=self.timeout, result_received_cb=self._take
        )
        self.broadcast_and_wait(
            task, fl_ctx, sites, min_responses=len(sites), abort_signal=abort_signal
        )
        if abort_signal.triggered:
            return
        if len(self._payloads) < self.min_clients:
            raise ValueError(
                f"Expected {self.min_clients} updates or more, got {len(self._payloads)}."
            )
        mechanism, _, _ = self._request.in_session(self._session, "")
        payloads = [payload for _, payload in sorted(self._payloads.items())]
        self._move(mechanism.mean(payloads, self._request.dimension))
        self._done += 1
        self._save()
        self._persist(fl_ctx)
        self.log_info(
            fl_ctx,
            f"randquant: round {self._done} of {self.rounds}, {len(payloads)} of {len(sites)} "
            f"sites: {self._accountant.told()}",
        )

    def _task_data(self) -> Shareable:
        data = DXO(DataKind.WEIGHTS, dict(self._model)).to_shareable()
        data.set_header(REQUEST, self._request.to_text())
        data.set_header(SESSION, self._session)
        data.set_header(AppConstants.CURRENT_ROUND, self._done)
        data.set_header(AppConstants.NUM_ROUNDS, self.rounds)
        return data

    def _take(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        try:
            self.accept(client_task.client.name, client_task.result or Shareable())
        except Exception as error:  # any error that a malicious answer causes
            text = logged(error if isinstance(error, ValueError) else UNREADABLE)
            self.log_warning(fl_ctx, f"randquant: refused: {text}")
        client_task.result = None

    def _move(self, mean: np.ndarray) -> None:
        moved = dict(self._model)
        for name, step in self._request.layout.unflatten(mean).items():
            old = self._model[name]
            moved[name] = (old + self.learning_rate * step).astype(old.dtype)
            if not np.isfinite(moved[name]).all():
                raise ValueError(f"Expected finite numbers in {name!r} after a step, got others.")
        self._model = moved

    def _persist(self, fl_ctx: FLContext) -> None:
        self._learnable[ModelLearnableKey.WEIGHTS] = dict(self._model)
        self._persistor.save(self._learnable, fl_ctx)

    def _save(self) -> None:
        record = {
            "rounds": self._done,
            "request": self._request.to_text(),
            "accountant": self._accountant.state_dict(),
        }
        state.write(self._path, record, self._model)

    def _restore(self) -> None:
        try:
            record, model = state.read(self._path)
            if record["request"] != self._request.to_text() or _kinds(model) != _kinds(self._model):
                raise ValueError("it is of another mechanism or model")
            done = validate.whole("rounds", record["rounds"], low=0)
            self._accountant.load_state_dict(record["accountant"])
        except state.ERRORS as error:
            raise state.refused(self._path, error) from error
        self._done, self._model = done, model


def _kinds(model: Mapping[str, np.ndarray]) -> list[tuple]:
    return [(name, array.dtype, array.shape) for name, array in model.items()]

"""The server's side on NVFlare: rounds of protected updates, their mean, and their account."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import ERROR, INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, Literal

import numpy as np
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants

from randquant._internal import files, validate
from randquant._internal.files import make_folder
from randquant._internal.serialization import to_json
from randquant.aggregation.registry import from_record
from randquant.integrations.nvflare.tasks import build_task, number, read, read_arrays, site_name
from randquant.planning.privacy import Privacy
from randquant.privacy.guarantee import Neighboring
from randquant.rounds.accountant import SO_FAR, RunAccountant
from randquant.rounds.offer import Offer
from randquant.rounds.parameter_free import Predicts
from randquant.rounds.parameter_layout import Layout
from randquant.rounds.protocol import RoundMessage, logged
from randquant.rounds.run import RoundsFailed, ServerRun, Target, UntunedSteps, default_delta
from randquant.rounds.store import ServerStore
from randquant.rounds.sums import Log, PlainSum, RoundSum, WithHelper


@dataclass(frozen=True)
class JobOptions:
    """Further settings of a job.

    Args:
        learning_rate: the model moves by this times the mean update; auto for steps that need no
            rate (docs/theory/untuned.md). Then sites scale their updates to clip_norm.
        predicts: for learning_rate auto, what the model predicts, `classes` or `numbers`.
        patience: number of failed rounds in a row after which the job is stopped.
        neighboring: the neighbouring relation of the guarantee.
        timeout: seconds for a round.
        task_name: of the task that sites train for.
        persistor_id: component that loads the first model, and saves it after every round, and
            where a job that was killed goes on.
    """

    learning_rate: float | Literal["auto"] = "auto"
    predicts: Predicts = "classes"
    patience: int = 3
    neighboring: Neighboring = "replace_one"
    timeout: int = 600
    task_name: str = AppConstants.TASK_TRAIN
    persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        if self.learning_rate != "auto":
            validate.real("learning_rate", self.learning_rate, above=0)
        UntunedSteps(self.predicts)  # for its ValueError
        validate.whole("timeout", self.timeout, low=1)
        validate.whole("patience", self.patience, low=1)


class QuantizeController(Controller):
    """Asks all sites for protected updates, and steps along their mean, round after round.

    Sites need `QuantizeFilter`. All sites have equal weight.

    Args:
        mechanism: the `record()` of a mechanism of local trust, or with `sums` of aggregate trust.
        rounds: rounds of the run, those before a restart included.
        folder: holds `server.sqlite`: the account, written before sites are asked, and the model
            after every round. A job that is started again with the same folder continues. When
            training ends `certificate.json` is written there (docs/certificate-file.md).
        stop_at_epsilon: sites whose epsilon would exceed this are not asked; with fewer than
            `min_clients` left, training ends.
        delta: of the guarantee.
        examples: the public number by which sites divide their sums of clipped gradients: the limit
            is then for one example (patient), see `QuantizeFilter`. None: it is for all data of a
            site.
        min_clients: fewest valid answers of a round.
        options: the rest.
        sums: secure sums with a helper, in which the server sees no single site's answer.

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
        examples: int | None = None,
        min_clients: int = 2,
        options: JobOptions = JobOptions(),
        sums: WithHelper | None = None,
    ) -> None:
        super().__init__()
        self.mechanism, self.folder = to_json(mechanism), str(folder)
        self.rounds = validate.whole("rounds", rounds, low=1)
        self.min_clients = validate.whole("min_clients", min_clients, low=1)
        self.stop_at_epsilon, self.delta = stop_at_epsilon, delta
        self.examples, self.options, self.sums = examples, options, sums
        # For its errors, when the job is configured; `start_controller` makes the run.
        self._new_run(lambda level, line: None)

    @classmethod
    def for_target(
        cls,
        model: Any,
        *,
        epsilon: float,
        rounds: int,
        sites: int,
        folder: str,
        delta: float | None = None,
        examples: int | None = None,
        privacy: Privacy = Privacy(),  # noqa: B008 - it is frozen
        options: JobOptions = JobOptions(),
        sums: WithHelper | None = None,
    ) -> QuantizeController:
        """Make a controller whose whole run meets a target, before any site is asked.

        Args:
            model: what is trained: a torch module, a state dict, arrays by name, or the number of
                coordinates of an update.
            epsilon: the target in nats, for all data of a site or, with `examples`, for one of its
                examples (patients); no site is asked beyond it.
            rounds: of the run.
            sites: how many take part in each round.
            folder, options: as for the constructor.
            delta: of the target; by default a tenth of 1 / sites (or of 1 / all examples), and at
                most 1e-5.
            examples: protect one example (one patient): the public number by which sites divide
                their sums of clipped gradients, see `QuantizeFilter`. Take the number of all
                examples over the number of sites.
            privacy: what is protected, and how updates are clipped and sent; with the neighbouring
                relation of `options`.
            sums: secure sums with a helper; without them each site's own noise protects it.

        Raises:
            OutOfReach: no noise meets the target; the message says what would be needed.
            TypeError, ValueError: an argument is out of bounds.

        Example:
            >>> controller = QuantizeController.for_target(
            ...     16, epsilon=2.0, rounds=20, sites=4, folder="run", examples=184)
            >>> controller.stop_at_epsilon, controller.examples, controller.min_clients
            (2.0, 184, 4)
        """
        sites = validate.whole("sites", sites, low=1)
        rounds = validate.whole("rounds", rounds, low=1)
        if privacy.numbers or privacy.weighted_by is not None:
            raise ValueError(
                "Expected updates alone on NVFlare, got numbers sent with them: leave numbers and "
                "weighted_by out of privacy."
            )
        if privacy.neighboring != options.neighboring:
            raise ValueError(
                "Expected one neighbouring relation in privacy and options, got "
                f"{privacy.neighboring} and {options.neighboring}."
            )
        target = Target(
            epsilon, rounds, sites, sites,
            default_delta(sites, examples) if delta is None else delta,
            "local" if sums is None else "aggregate", privacy, examples,
        )  # fmt: skip
        mechanism = target.mechanism(_dimension(model), getLogger(__name__).log)
        return cls(
            mechanism.record(), rounds, folder, epsilon, target.delta, examples, sites,
            options, sums,
        )  # fmt: skip

    def start_controller(self, fl_ctx: FLContext) -> None:
        # Another run than that of the constructor, which had no engine to log to.
        self._run = self._new_run(self._logger(fl_ctx))
        self._learnable: ModelLearnable = self._persistor.load(fl_ctx)
        self._set_model(self._model)
        self._layout().check_tied(self._model)
        self._offer()  # for its ValueError, before a site is asked

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the rounds that are not done yet, with the folder's model and account if it has them.

        Raises:
            ValueError: the folder's state is damaged, or of another mechanism or model.
            BlockingIOError: another process is training in the folder.
        """
        run, log = self._run, self._logger(fl_ctx)
        with contextlib.ExitStack() as stack:
            make_folder(self._path.parent)
            stack.enter_context(files.folder(self._path.parent))
            if self.sums is not None:
                self.sums.check(log)  # ValueError: there is no helper
            # Read under the lock, so that no other process adds a round meanwhile.
            if self._restore():
                # This job's persistor has the first model only.
                self._persistor.save(self._learnable, fl_ctx)
                log(INFO, f"randquant: continuing after round {run.done}.")
            while run.done < self.rounds and not abort_signal.triggered:
                sites = self._eligible(log)
                if len(sites) < self._min_sites:
                    log(
                        INFO, f"randquant: training ends before round {run.done + 1}: {len(sites)} "
                        f"sites may take part within epsilon {self.stop_at_epsilon}, and "
                        f"{self._min_sites} are needed.",
                    )  # fmt: skip
                    break
                try:
                    self._round(sites, fl_ctx, abort_signal)
                except ValueError as error:
                    if abort_signal.triggered:  # answers are missing because the job was aborted
                        break
                    try:
                        run.failed(run.done + 1, len(sites), error)
                    except RoundsFailed as failed:
                        self.system_panic(f"randquant: {failed}", fl_ctx)
                        return
            log(INFO, f"randquant: the run, {run.accountant.summary()}; {SO_FAR}")
            run.write_certificate()

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: the state is on disk already."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable,
        fl_ctx: FLContext,
    ) -> None:  # fmt: skip
        # It came too late, and is not used. The account covers what the site has sent all the same:
        # it was charged when it was asked.
        self.log_warning(fl_ctx, f"randquant: an answer of {logged(client.name)} came too late.")

    @property
    def _path(self) -> Path:
        return Path(self.folder) / "server.sqlite"

    @property
    def _persistor(self) -> Any:
        return self._engine.get_component(self.options.persistor_id)

    @property
    def _model(self) -> dict[str, np.ndarray]:
        return self._learnable[ModelLearnableKey.WEIGHTS]

    @property
    def _min_sites(self) -> int:
        # A sum needs as many sites as the mechanism's noise is calibrated for.
        if self.sums is None:
            return self.min_clients
        return max(self.min_clients, self.sums.fewest(self._run.mechanism))

    def _new_run(self, log: Log) -> ServerRun:
        mechanism = from_record(self.mechanism)
        if self.sums is not None:
            self.sums.fewest(mechanism)  # for its ValueError
        elif mechanism.trust != "local":
            raise ValueError(
                f"Expected a mechanism of local trust, got {mechanism!r}: without sums=WithHelper("
                "...) NVFlare's server sees every single site's answer."
            )
        accountant = RunAccountant(
            self.delta, self.options.neighboring, self.stop_at_epsilon, stable=True,
            counts_on="" if self.sums is None else self.sums.counts_on,
        )  # fmt: skip
        options, untuned = self.options, None
        if options.learning_rate == "auto":
            untuned = UntunedSteps(options.predicts)
        return ServerRun(
            mechanism, accountant, log, None, options.patience, untuned, ServerStore(self._path)
        )

    def _logger(self, fl_ctx: FLContext) -> Log:
        def log(level: int, line: str) -> None:
            if level >= ERROR:
                self.log_error(fl_ctx, line)
            else:
                (self.log_warning if level >= WARNING else self.log_info)(fl_ctx, line)

        return log

    def _layout(self) -> Layout:
        return Layout.from_model(self._model)

    def _offer(self) -> Offer:
        # Running statistics are not sent: the server keeps those of the first model.
        return self._run.offer(self._layout(), "server", examples=self.examples)

    def _eligible(self, log: Log) -> list[str]:
        # By number. Of two sites with one number the later one takes the other's place.
        names = {}
        for client in self._engine.get_clients():
            try:
                name = site_name(client.name)
            # A site whose name cannot be in a log or a file's name does not end the others' round.
            except ValueError as error:
                log(WARNING, f"randquant: a site is left out: {error}")
                continue
            names[number(name)] = name
        return sorted(names[site] for site in self._run.eligible(self._offer(), names))

    def _round(self, sites: list[str], fl_ctx: FLContext, abort_signal: Signal) -> None:
        run, log = self._run, self._logger(fl_ctx)
        round_sum = self._begin_sum(sites, log)
        session = next(iter(round_sum.pending.values())).session
        offer = round_sum.offer
        # On disk before any site is asked: a server that dies has charged too much at worst.
        run.charge(run.done + 1, offer, round_sum.pending.keys(), lambda: (self._model, {}))
        received: list[tuple[int, RoundMessage | Exception]] = []

        def take(client_task: ClientTask, fl_ctx: FLContext) -> None:
            site = number(client_task.client.name)
            received.append((site, read(client_task.result or Shareable(), session)))
            # It is read: else the task would keep the bytes of all sites until the round is over.
            client_task.result = None

        name, seconds = self.options.task_name, self.options.timeout
        task = Task(name, self._task_data(round_sum), timeout=seconds, result_received_cb=take)
        # For all of them until the timeout: who is in the mean does not depend on who is fastest.
        self.broadcast_and_wait(
            task, fl_ctx, sites, min_responses=len(sites), abort_signal=abort_signal
        )
        if abort_signal.triggered:
            return
        round_sum.take(received)
        layout, rate = self._layout(), self.options.learning_rate
        step = run.step(round_sum, layout, self._model, self.rounds)
        if rate != "auto":
            step = np.float32(rate) * step
        self._set_model(self._model | layout.moved(self._model, step))
        run.done += 1
        sizes = {"upload_bytes": round_sum.upload_bytes, "plain_bytes": offer.plain_bytes}
        # The store first: it is what a restart goes on from, and the persistor's file a copy.
        run.succeeded(run.done, len(sites), round_sum.clients, sizes, (self._model, {}))
        self._persistor.save(self._learnable, fl_ctx)
        cost = f"{run.accountant.summary()}; {SO_FAR}"
        log(INFO, f"randquant: round {run.done} of {self.rounds}: {cost}")

    def _begin_sum(self, sites: list[str], log: Log) -> RoundSum:
        clients, offer = sorted(map(number, sites)), self._offer()
        if self.sums is not None and offer.mechanism.trust == "aggregate":
            return replace(self.sums, least=self._min_sites).begin(offer, clients, log)
        # A site gets one message a round, which leaves none for drawing a seed with the server.
        return PlainSum(offer, clients, log, self.min_clients, drawn=False)

    def _task_data(self, round_sum: RoundSum) -> Shareable:
        headers = {AppConstants.CURRENT_ROUND: self._run.done, AppConstants.NUM_ROUNDS: self.rounds}
        # NVFlare broadcasts one task, so all sites get the same request.
        return build_task(next(iter(round_sum.pending.values())), self._model, headers)

    def _set_model(self, model: Mapping[str, np.ndarray]) -> None:
        arrays = {name: np.asarray(array) for name, array in model.items()}
        self._learnable[ModelLearnableKey.WEIGHTS] = arrays

    def _restore(self) -> bool:
        offer = self._offer()
        stored = self._run.stored(offer, self._model)
        if stored is None:
            return False
        model, _ = self._run.restore(stored, offer)
        self._set_model(model)
        return True


def _dimension(model: Any) -> int:
    if isinstance(number := validate.number(model), int):
        return validate.whole("model", number, low=1, why="it is a number of coordinates")
    state = model.state_dict() if callable(getattr(model, "state_dict", None)) else model
    if not isinstance(state, Mapping):
        raise TypeError(
            "Expected model to be a torch module, a state dict, arrays by name or a number of "
            f"coordinates, got {validate.shown(model)}."
        )
    return Layout.from_model(read_arrays(DXO(DataKind.WEIGHTS, dict(state)))).dimension

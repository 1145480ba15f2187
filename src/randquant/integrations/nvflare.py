"""NVFlare with private updates: `QuantizeFilter` at a site, `QuantizeController` on the server.

What is sent, and who can learn what: `docs/nvflare.md`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import ERROR, INFO, WARNING, getLogger
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from randquant._internal import files, validate
from randquant._internal.files import make_folder
from randquant._internal.formatting import to_json
from randquant._internal.imports import needed
from randquant.aggregation.layout import Arrays, Layout, check_precision
from randquant.aggregation.registry import from_record
from randquant.channels.encoding import floats
from randquant.planning.plans import Privacy
from randquant.privacy.guarantee import DEFAULT_DELTA, Neighboring
from randquant.rounds.accountant import SO_FAR, RunAccountant
from randquant.rounds.limits import ClientLimits
from randquant.rounds.member import AgreedUpload, Member
from randquant.rounds.offer import Offer
from randquant.rounds.parameter_free import Predicts
from randquant.rounds.protocol import SESSION_BYTES, UPLOAD, NoAnswer, RoundMessage, logged
from randquant.rounds.run import (
    DEFAULT_PATIENCE,
    RoundsFailed,
    ServerRun,
    Target,
    UntunedSteps,
    default_delta,
)
from randquant.rounds.store import ServerStore
from randquant.rounds.sums import Log, PlainSum, RoundSum, WithHelper
from randquant.secure_sums.terms import ProtocolError

with needed("NVFlare", "nvflare"):
    from nvflare.apis.controller_spec import ClientTask, Task
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.filter import Filter
    from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.impl.controller import Controller
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.apis.signal import Signal
    from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey
    from nvflare.app_common.app_constant import AppConstants

__all__ = ["JobOptions", "QuantizeController", "QuantizeFilter"]

REQUEST = "randquant.request"
SESSION = "randquant.session"
TERMS = "randquant.terms"
PROOF = "randquant.proof"
"""Headers of a task."""

PAYLOAD = "randquant.payload"
"""The field of an answer."""


def build_task(
    request: RoundMessage, model: Mapping[str, np.ndarray], headers: Mapping[str, Any]
) -> Shareable:
    """Return a task to train a model, with the request for its update in the headers."""
    task = DXO(DataKind.WEIGHTS, dict(model)).to_shareable()
    request_headers = {
        REQUEST: request.offer, SESSION: request.session, TERMS: request.terms,
        PROOF: request.proof,
    }  # fmt: skip
    for name, value in {**request_headers, **headers}.items():
        task.set_header(name, value)
    return task


def request_in(task: Shareable) -> RoundMessage:
    """Read the request of a task that `build_task` made.

    Raises:
        ValueError: the task has none, or it is malformed.
    """
    # The refusal does not repeat what the task holds, which is whatever the server has sent.
    text, session = _header(task, REQUEST), _header(task, SESSION)
    if not (isinstance(text, str) and isinstance(session, bytes)):
        raise ValueError("Expected a task of QuantizeController, got a task without a request.")
    if len(session) != SESSION_BYTES:
        raise ValueError(f"Expected a session of {SESSION_BYTES} bytes, got {len(session)}.")
    head: dict[str, Any] = {"step": UPLOAD, "session": session, "offer": text}
    for name, header in (("terms", TERMS), ("proof", PROOF)):
        if (value := _header(task, header)) is not None:
            head[name] = value
    return RoundMessage.read(head)


def build_result(answer: RoundMessage) -> Shareable:
    # A new result: nothing that training has put into its own goes with the payload.
    return DXO(DataKind.APP_DEFINED, {PAYLOAD: answer.update}).to_shareable()


def read_answer(result: Shareable, session: bytes, max_bytes: int) -> RoundMessage | Exception:
    # An error is returned and not raised: the sum logs it, and goes on without the site.
    try:
        code = _header(result, ReservedKey.RC)
        if code not in (None, ReturnCode.OK):
            raise NoAnswer(f"Expected an update, got the return code {code}: see the site's log.")
        answer = read_data(result)
        payload = answer.data.get(PAYLOAD) if answer.data_kind == DataKind.APP_DEFINED else None
        if not isinstance(payload, bytes):
            kind = f"{answer.data_kind} without a payload in bytes"
            raise ProtocolError(f"Expected codes, got {kind}: a site needs QuantizeFilter.")
        # Before the round has all answers: they are kept until then, the longer ones in vain.
        if len(payload) > max_bytes:
            raise ProtocolError(
                f"Expected an answer of at most {max_bytes} bytes, got {len(payload)}."
            )
        return RoundMessage(UPLOAD, session, payload=payload)
    except Exception as error:  # any error that a malicious answer causes
        return error


def read_data(message: Shareable) -> DXO:
    try:
        return from_shareable(message)
    except Exception as error:  # any error that a malicious message causes
        raise ValueError("Expected a message with data, got a message without data.") from error


def read_arrays(data: DXO) -> dict[str, np.ndarray]:
    """Return copies of the arrays of a model or an update: training may change them in place."""
    arrays: Any = data.data
    if not isinstance(arrays, dict) or not all(isinstance(name, str) for name in arrays):
        raise ValueError(f"Expected arrays by name, got a {type(arrays).__name__}.")
    return {name: _copy(array) for name, array in arrays.items()}


def read_numbers(data: DXO) -> dict[str, float]:
    """Return the single numbers among the metrics of a model or an update, by name."""
    metrics: Any = data.get_meta_prop(MetaKey.INITIAL_METRICS)
    named = metrics.items() if isinstance(metrics, dict) else ()
    single: dict[str, Any] = {name: v for name, v in named if isinstance(v, Real)}
    return single


def _copy(array: Any) -> np.ndarray:
    try:
        values, widen = floats(array)
    except TypeError:  # counters and other integers
        return np.asarray(array).copy()
    # NumPy has no bfloat16, and differences in 16 bits would be rounded.
    return widen(values).copy()


def _header(message: Shareable, name: str) -> Any:
    try:
        return message.get_header(name)
    except ValueError:  # of a malformed message, whose headers are not a dictionary
        return None


def site_name(name: object) -> str:
    """Return the name of a site if it can be in a file's name, a key and a line of a log.

    Raises:
        ValueError: it cannot.

    Example:
        >>> site_name("cleveland")
        'cleveland'
    """
    if (
        not (isinstance(name, str) and name and name.isprintable())
        or ":" in name
        or Path(name).name != name
    ):
        raise ValueError(
            "Expected the name of a site in printable characters, without ':' and slashes, got "
            f"{validate.shown(name)}: provision it under another name."
        )
    return name


def site_number(site: str) -> int:
    """Return a site's number in accounts: a hash of its name, which NVFlare authenticates.

    Should two sites have the same number, only one of them takes part.
    """
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "little")


# The server's side: rounds of protected updates, their mean, and their account.


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
    patience: int = DEFAULT_PATIENCE
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
        sums: secure sums with a helper, in which the server sees no single site's answer. Unless it
            is set, the environment variable GRPC_ENABLE_FORK_SUPPORT becomes 0 in this process and
            in those that it starts, for the simulator's sake.

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
        delta: float = DEFAULT_DELTA,
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
        if sums is not None:
            # NVFlare's simulator forks the process that asks the helper, for each site. gRPC's
            # poller, which goes on in a fork by default, now and then aborts it before it is a
            # site, and the simulator waits for that site for ever. A script makes the controller
            # first, so that the simulator inherits this.
            os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
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
            names[site_number(name)] = name
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
            site = site_number(client_task.client.name)
            result = client_task.result or Shareable()
            received.append((site, read_answer(result, session, round_sum.most)))
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
        clients, offer = sorted(map(site_number, sites)), self._offer()
        if self.sums is not None and offer.mechanism.trust == "aggregate":
            return replace(self.sums, least=self._min_sites).begin(offer, clients, log)
        # A site gets one message a round, which leaves none for drawing a seed with the server.
        return PlainSum(offer, clients, log, self._min_sites, drawn=False)

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


# The site's side: a filter that lets only protected updates out.

FAILED = ReturnCode.EXECUTION_EXCEPTION
FAILURES = tuple(code for name, code in vars(ReturnCode).items() if name.isupper() and name != "OK")
"""NVFlare's own return codes of failed tasks; any other is replaced by FAILED."""

AGREED_KEY = "randquant.asked"
"""Key of the agreed request, and of its model, in the context of a task."""


class QuantizeFilter(Filter):
    """Replaces what a site would send by the codes of its update, as `QuantizeController` asks.

    Configure it both for task data and for task results, in the site's own `privacy.json` or in a
    job, last in each chain. Everything but a protected update is refused: NVFlare then reports an
    error without data to the server.

    Args:
        epsilon: limit of this site's epsilon at `delta` by a proven bound that the site computes
            itself. It counts its own answers, and refuses one that would exceed the limit.
        folder: holds the site's account, `NAME.account`, over all jobs; written before anything
            that it counts is sent. A whole path, which each job's process sees alike.
        delta: in (0, 1).
        neighboring: what the guarantee hides.
        examples: the public number by which this filter divides what the training code sends as
            WEIGHT_DIFF, once a round: the sum of its examples' (patients') gradients, each clipped
            to `clip_norm` (`randquant.example_update`). The limit is then for one example. None: it
            is for all data of the site.
        helper: public identity, 64 hexadecimal digits, of the helper of secure sums that this site
            trusts not to collude with the server. None: only updates with all their noise are sent.
        identity: file in PEM of this site's Ed25519 key, which signs what it sends the helper, if
            the helper has a directory.
        clip_norm: what the training code clips gradients to, needed with `examples`: a mechanism
            with a smaller threshold, by which an example would count for less, is refused.

    Guarantees:
        What is sent is drawn from the certified channel with a key from the operating system. An
        answer is in the account, on the disk, before it is sent. A request is answered once.

    Example:
        >>> QuantizeFilter(epsilon=2.0, folder="/var/lib/randquant", examples=120).examples
        120
    """

    def __init__(
        self,
        epsilon: float,
        folder: str,
        delta: float = DEFAULT_DELTA,
        neighboring: Neighboring = "replace_one",
        examples: int | None = None,
        helper: str | None = None,
        identity: str | None = None,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__()
        self.epsilon, self.folder, self.delta = epsilon, folder, delta
        self.neighboring: Neighboring = neighboring
        self.examples, self.helper, self.identity = examples, helper, identity
        self.clip_norm = clip_norm
        # It has the account's version, so that an older copy put in its place is noticed.
        self._state: dict[str, dict[str, Any]] = {}
        # Settings fail when the site starts, not in a job.
        if not Path(folder).is_absolute():
            raise ValueError(
                f"Expected folder to be a whole path, such as /var/lib/randquant, got "
                f"{validate.shown(folder)}: a job whose process is started elsewhere would begin a "
                "new account."
            )
        self._limits()  # for its ValueError

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Check a task before training, or replace its result by a protected update.

        Raises:
            ValueError: it is refused; NVFlare reports that without data.
        """
        member = self._member(fl_ctx)
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            request = request_in(shareable)
            model = read_arrays(read_data(shareable))
            agreed = member.agree(request, model)
            # Only a check: a request beyond the limit costs the site no training.
            member.charge(agreed.membership)
            # Private: NVFlare does not send it. Not sticky: it ends with the task.
            fl_ctx.set_prop(AGREED_KEY, (agreed, model), private=True, sticky=False)
            return shareable
        agreed, old = fl_ctx.get_prop(AGREED_KEY) or (None, {})
        if agreed is not None:
            # Before anything leaves, a failure too, which may depend on data: the account may
            # overstate what was sent, and never understate.
            member.charge(agreed.membership, agreed.request.step)
        if (code := shareable.get_return_code()) != ReturnCode.OK:
            # A new reply, with a code of NVFlare's own: training code could hide data in either.
            return make_reply(next((known for known in FAILURES if known == code), FAILED))
        if agreed is None:
            raise ValueError(
                "Expected a request before its answer, got an answer alone: configure "
                "QuantizeFilter for task data and for task results."
            )
        payload = self._encode(member, agreed, old, read_data(shareable))
        return build_result(member.upload(agreed, payload))

    def _encode(self, member: Member, agreed: AgreedUpload, old: Arrays, result: DXO) -> bytes:
        if result.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            raise ValueError(f"Expected an update or a model, got {result.data_kind!s}.")
        whole = result.data_kind == DataKind.WEIGHTS
        new, numbers = read_arrays(result), read_numbers(result)
        if self.examples is not None:
            check_precision(agreed.layout.parts, result.data)  # before it is read as float64
        return member.encode(agreed, old, new, numbers, whole)

    def _limits(self) -> ClientLimits:
        trust = "local" if self.helper is None else "aggregate"
        return ClientLimits(
            self.epsilon, self.delta, self.neighboring, trust, helper=self.helper,
            examples=self.examples, clip_norm=self.clip_norm,
        )  # fmt: skip

    def _member(self, fl_ctx: FLContext) -> Member:
        name = site_name(fl_ctx.get_identity_name())
        make_folder(Path(self.folder))
        files = {"randquant-ledger": str(Path(self.folder) / f"{name}.account")}
        if self.identity is not None:
            files["randquant-identity"] = self.identity

        def log(level: int, line: str) -> None:
            (self.log_warning if level >= WARNING else self.log_info)(fl_ctx, line)

        return Member(site_number(name), self._limits(), self._state, files, log, drawn=False)

"""The server's side on Flower: any strategy that needs only the mean of protected updates."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import ERROR, INFO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from randquant._internal import locks, validate
from randquant._internal.disk import make_folder
from randquant._internal.patterns import Patterns
from randquant.aggregation.alongside import Number
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.secagg.graphs import Losses
from randquant.aggregation.secagg.terms import ProtocolError
from randquant.integrations.accountant import SO_FAR
from randquant.integrations.flower import state
from randquant.integrations.flower.accountant import RoundEvent, RunAccountant
from randquant.integrations.flower.ahead import Handshakes, Way, checked_graph, checked_way, fewest
from randquant.integrations.flower.eligible import EligibleGrid
from randquant.integrations.flower.grids import PollingGrid
from randquant.integrations.flower.history import History, RoundRow
from randquant.integrations.flower.numbers import Beside
from randquant.integrations.flower.offer import Offer
from randquant.integrations.flower.planned import for_target
from randquant.integrations.flower.replies import Link
from randquant.integrations.flower.sums import PlainSum, SecureSum, Sum
from randquant.integrations.flower.updates import Buffers, Layout, checked_buffers, parts_of
from randquant.integrations.flower.wrapped import (
    RoundsFailed,
    check_inner,
    check_nodes,
    only_reply,
    summarise,
)
from randquant.privacy.guarantee import Neighboring

STATE_FILE = "server.state"


class QuantizedStrategy(Strategy):
    """Wraps a strategy: clients send codes, and the strategy takes its step with the decoded mean.

    Clients need `QuantizeMod`. Of their metrics only `numbers` are sent, in the same sum.

    Args:
        strategy: selects clients, and takes the step: FedAvg, FedAvgM, FedAdam, FedProx and others
            that need only the mean.
        mechanism: with `aggregate` trust, codes are summed by secure aggregation, in sums of
            `mechanism.cohort` clients or more.
        delta, neighboring: of the guarantee.
        stop_at_epsilon: clients whose epsilon would exceed this are left out; if too few are left,
            training ends.
        least: fewest clients in a sum, at least `mechanism.cohort` plus the number of clients that
            may collude with the server. (`aggregate` only.)
        stable_numbers: whether clients are certain to keep their numbers, because SuperNodes are
            authenticated and the SuperLink keeps its database. Otherwise a client that is new after
            the first round is assumed to have answered as often as any other.
        neighbours: how many others each client shares masks with; None for all. Fewer are faster,
            and clients must agree (`QuantizeMod(all_neighbours=False)`).
        losses: what sums must withstand: chooses the number of neighbours, and logs it.
        step_timeout: seconds for each step of secure aggregation other than the upload.
        folder: folder for the model, the strategy's moments and the account, which are written
            after every round and before clients are asked. A run started again with the same
            folder continues.
        parts: patterns such as `head.*`: arrays whose names match one are trained, sent and
            counted; None for all of floating-point numbers. Running statistics never are.
        frozen: patterns of arrays that are left out.
        buffers: what to do about a model with running statistics (of a batch norm): `refuse` it,
            train with `frozen` ones, which clients check, or let the `server` have its own: clients
            may compute others, which they do not send.
        statistics: with `buffers="server"`, called with the model after each step; what it returns
            has the server's running statistics, from data of its own. None keeps those that the
            model began with.
        directory: public keys of all clients' identities by node number, 32 bytes of Ed25519, as in
            the clients' `randquant-directory`: a client whose keys are not signed is left out of a
            sum, which it could otherwise stop.
        patience: how many rounds in a row may fail before `start` raises RoundsFailed.
        handshake: `apart`: a secure sum takes five messages, one after the other. `ahead`: from the
            second round on three, since a round's handshake travels with the messages of the round
            before, when its clients are chosen.
        connect_timeout: seconds that `start` waits for the nodes that a round needs.
        numbers: what clients' train functions return as metrics under these names, such as
            `Number("accuracy")`, is sent beside updates; the round's metrics have the means, and
            `NAME_deviation`, what noise adds to them.
        weighted_by: the name of a number that updates are weighted by; None for equal weights.
        clip_quantile: let the threshold of updates follow this quantile of their norms, from
            `mechanism.clip_norm` on; None to leave it there.

    Guarantees:
        The reported epsilon holds for every client and its numbers, whatever fails: it counts all
        clients that were asked to upload. A round either takes its step with the exact mean of the
        valid replies, or leaves the model unchanged and logs why.

    Raises:
        TypeError, ValueError: the strategy needs more than a mean, or an argument is out of bounds.

    Example:
        >>> import randquant as rq
        >>> from randquant.aggregation.vector import VectorMechanism
        >>> from flwr.serverapp.strategy import FedAvg
        >>> channel = rq.stochastic_rounding(clip=0.05, levels=2, margin=0.5)
        >>> mechanism = VectorMechanism(channel, clip_norm=1.0, trust="aggregate", cohort=40)
        >>> strategy = QuantizedStrategy(FedAvg(), mechanism, stop_at_epsilon=8.0)
    """

    def __init__(
        self,
        strategy: Strategy,
        mechanism: UpdateMechanism,
        *,
        delta: float = 1e-5,
        neighboring: Neighboring = "replace_one",
        stop_at_epsilon: float | None = None,
        least: int | None = None,
        stable_numbers: bool = False,
        neighbours: int | None = None,
        step_timeout: float = 600.0,
        folder: str | Path | None = None,
        patience: int = 3,
        parts: Patterns = None,
        frozen: Patterns = None,
        buffers: Buffers = "refuse",
        statistics: Callable[[ArrayRecord], ArrayRecord] | None = None,
        directory: Mapping[int, bytes] | None = None,
        losses: Losses | None = None,
        handshake: Way = "apart",
        connect_timeout: float = 60.0,
        numbers: Sequence[Number] = (),
        weighted_by: str | None = None,
        clip_quantile: float | None = None,
    ) -> None:
        check_inner(strategy)
        self.parts, self.frozen = parts, frozen
        self.buffers: Buffers = checked_buffers(buffers, statistics is not None)
        self.statistics, self.directory = statistics, directory
        self._beside = Beside.of(mechanism, numbers, weighted_by, clip_quantile)
        offer = Offer(mechanism, 2**29, beside=self._beside.alongside)  # checks both
        Offer.from_text(offer.to_text())  # as clients will
        self.strategy, self.mechanism = strategy, mechanism
        self.accountant = RunAccountant(delta, neighboring, stop_at_epsilon, stable=stable_numbers)
        self.least = mechanism.cohort if least is None else least
        why = "the guarantee needs that many"
        validate.whole("least", self.least, low=mechanism.cohort, why=why)
        if mechanism.trust == "aggregate":
            validate.whole("least", self.least, low=2, why="a sum of one hides nothing")
        self.neighbours, self.losses, self.step_timeout = neighbours, losses, step_timeout
        self.patience = validate.whole("patience", patience, low=1)
        graph, way = checked_graph(neighbours, losses), checked_way(handshake, mechanism.trust)
        self._handshakes = Handshakes(way, self.least, graph, directory)
        self.connect_timeout = validate.real("connect_timeout", connect_timeout, low=0)
        self.rounds, self.needed = 3, self.least  # by default; Flower's own default is 3 rounds
        self.stopped = ""  # why training is over, once it is
        self._path = None if folder is None else Path(folder) / STATE_FILE
        self._done = self._failures = self._asked = 0  # rounds before this start; in a row; clients
        self.history: list[RoundRow] = []  # with failed rounds
        self._sum: Sum | None = None
        self._base, self._squares = ArrayRecord(), ()  # what a mechanism adapts to

    for_target = classmethod(for_target)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose clients, and set up the round with them."""
        self._base, self._sum, self._asked = arrays, None, 0
        number = server_round + self._done
        offer = self._offer(arrays)
        view = EligibleGrid(grid, offer, self.accountant)
        if self.stopped or self._exhausted(view, number):
            return []
        requests = list(self.strategy.configure_train(number, arrays, config, view))
        if not requests:
            return []
        chosen = frozenset(request.metadata.dst_node_id for request in requests)
        try:
            connected = set(view.get_node_ids())
            if len(chosen) < len(requests) or not chosen <= connected:
                raise ProtocolError(
                    "Expected each client once in a round and within its epsilon, got others."
                )
            offer = self._offer(arrays, len(chosen))  # at the same cost, whatever it adapts to
            link = Link(grid, self.step_timeout, requests[0].metadata.message_type, str(number))
            if self.mechanism.trust == "local":
                self._sum = PlainSum(offer, sorted(chosen), link)
            else:
                requests, own = self._handshakes.of_round(requests, offer, connected)
                self._sum = SecureSum(own, link)
            self._beside.stamp(additions := self._sum.requests())
        except ValueError as error:
            self._fail(number, error)
            return []
        asked = frozenset(request.metadata.dst_node_id for request in requests)
        self.accountant.compose(RoundEvent(offer, asked.intersection(additions)))
        self._asked = len(requests)
        self._save(number - 1, arrays)  # once asked, a client may send whatever happens here
        self._sum.ahead = self._handshakes.prepare(
            self.strategy, number + 1, offer, arrays, config, view
        )
        additions, others = self._sum.joined(additions)
        sent = link.messages(others)
        for request in requests:
            if (client := request.metadata.dst_node_id) in additions:
                request.content = RecordDict({**request.content, **additions[client]})
                sent.append(request)
        return sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the mean and let the strategy take its step; (None, None) if the round fails."""
        current, self._sum = self._sum, None
        if current is None:
            return None, None
        number, replies, layout = server_round + self._done, list(replies), self._layout(self._base)
        try:
            good = current.add(replies)
            moved = layout.moved(self._base, self._beside.update(mean := current.mean()))
        except ValueError as error:
            self._fail(number, error)
            return None, None
        finally:
            self._handshakes.prepared = current.ahead
        arrays, metrics = self.strategy.aggregate_train(number, [only_reply(replies, moved)])
        if arrays is None:
            self._fail(number, RuntimeError("the strategy took no step"))
            return None, None
        layout.settled(self._base, arrays)
        if self.statistics is not None:
            layout.take_running(arrays, self.statistics(ArrayRecord(dict(arrays.items()))))
        self._failures = 0
        self._squares = current.offer.mechanism.noted(self._squares, mean, good)
        sizes = current.measured()
        row = self._note(number, self._asked - good, sizes)
        self._save(number, arrays)
        own = {"clients": good, "dropped": row.dropped, "epsilon": row.epsilon, **sizes}
        own |= self._beside.told(current.offer, good)
        return arrays, MetricRecord({**(metrics or {}), **own})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the strategy; evaluation is not protected."""
        if self.stopped:
            return []
        return self.strategy.configure_evaluate(server_round + self._done, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Delegate to the strategy."""
        return self.strategy.aggregate_evaluate(server_round + self._done, replies)

    def summary(self) -> None:
        """Log the privacy settings, and the strategy's own summary."""
        summarise(self.mechanism, self.accountant, self.least)
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds that are not done yet, like Flower's `Strategy.start`.

        Without num_rounds they are those of `for_target`, or 3.

        Raises:
            TooFewNodes: fewer nodes are connected than a round needs; no client was asked.
            RoundsFailed: `patience` rounds in a row have failed.
            ValueError: the folder holds a run of another mechanism, model, or account.
            BlockingIOError: another process is training in the folder.
        """
        with contextlib.ExitStack() as stack:
            if self._path is not None:
                make_folder(self._path.parent)
                stack.enter_context(locks.folder(self._path.parent))
            self._layout(initial_arrays)  # checks it
            arrays = self._restore(initial_arrays)
            done, planned = self._done, self.rounds if num_rounds is None else num_rounds
            if planned > done:
                check_nodes(grid, self.strategy, self.needed, self.connect_timeout)
            self._handshakes.start(planned)

            def evaluate(number: int, model: ArrayRecord) -> MetricRecord | None:
                return evaluate_fn(number + done, model) if evaluate_fn else None

            result = super().start(
                PollingGrid.over(grid), arrays, max(planned - done, 0), timeout, train_config,
                evaluate_config, evaluate if evaluate_fn else None,
            )  # fmt: skip
            result.arrays = result.arrays or arrays
            for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp",
                         "evaluate_metrics_serverapp"):  # fmt: skip
                setattr(result, name, {n + done: m for n, m in getattr(result, name).items()})
            own = self.accountant
            log(INFO, "randquant: %s %s; %s", own.get_privacy_spent(), own.assumes(), SO_FAR)
            return result

    def _offer(self, arrays: ArrayRecord, clients: int | None = None) -> Offer:
        layout, now, beside = self._layout(arrays), self.mechanism, self._beside
        dimension = layout.dimension + beside.extra
        if clients is not None:  # of a round
            now = now.adapted(self._squares, dimension, clients)
        return Offer(now, dimension, layout.parts, self.buffers, beside.alongside)

    def _layout(self, arrays: ArrayRecord) -> Layout:
        """Which arrays are trained; ValueError if there are running statistics to refuse."""
        layout = Layout.of(arrays, parts_of(arrays, self.parts, self.frozen))
        layout.check_running(self.buffers)
        return layout

    def _exhausted(self, view: EligibleGrid, number: int) -> bool:
        """Whether too few clients may still take part."""
        if why := view.too_few(fewest(self.strategy, self.least)):
            self.stopped = f"before round {number}: {why}"
            log(INFO, "randquant: training ends %s.", self.stopped)
        return bool(self.stopped)

    def _fail(self, number: int, error: Exception) -> None:
        """Log why a round failed; the model is unchanged."""
        self._sum = None
        self._failures += 1
        log(ERROR, "randquant: round %d failed, the model is as before: %s", number, error)
        self._note(number, self._asked, {}, str(error))
        if self._failures >= self.patience:
            raise RoundsFailed(
                f"Expected a round to succeed, got {self._failures} failures in a row, the last: "
                f"{error}"
            ) from error

    def outcome(self, result: Result | None = None) -> History:
        """Return the run for `randquant.report`: epsilon, bytes and dropouts of every round.

        Args:
            result: of `start`, for what the server measured after each round.
        """
        title, own = f"{type(self.strategy).__name__} with private updates", self.accountant
        measured = {} if result is None else self._beside.measured(result)
        spent = own.get_privacy_spent()
        return History(title, self.history, spent, measured, own.max_epsilon, own.assumes())

    def _note(self, number: int, dropped: int, sizes: dict[str, int], why: str = "") -> RoundRow:
        """Note in the history and the log what a round cost."""
        epsilon = self.accountant.get_epsilon(self.accountant.delta)
        row = RoundRow(number, epsilon, self._asked, dropped, **sizes, failed=why)
        self.history.append(row)
        log(INFO, "randquant: %s.", row.line())
        return row

    def _save(self, rounds: int, arrays: ArrayRecord) -> None:
        if self._path is None:
            return
        record: dict[str, Any] = {
            "rounds": rounds,
            "offer": self._offer(arrays).digest,
            "strategy": type(self.strategy).__name__,
            "accountant": self.accountant.state_dict(),
            "squares": self._squares,
            "threshold": self._beside.threshold,
            "history": [dataclasses.asdict(row) for row in self.history],
        }
        state.save(self._path, record, arrays, self.strategy)

    def _restore(self, initial: ArrayRecord) -> ArrayRecord:
        """The model to continue with: the folder's, if it has one."""
        self._done, self._failures, self.stopped, self.history, self._squares = 0, 0, "", [], ()
        if self._path is None or not self._path.exists():
            return initial
        record, arrays = state.load(self._path, self.strategy)
        offer = self._offer(initial).digest
        stored = (record.get("offer"), record.get("strategy"), Layout.of(arrays))
        if stored != (offer, type(self.strategy).__name__, Layout.of(initial)):
            raise ValueError(
                f"Expected {self._path} to be of this mechanism, model and strategy, got another "
                "run's: choose another folder."
            )
        done = validate.whole("rounds", record.get("rounds"), low=0)
        self.accountant.load_state_dict(record.get("accountant", {}))
        self._done, self._squares = done, tuple(record.get("squares", ()))
        self._beside.threshold = record.get("threshold", self._beside.threshold)
        self.history = [RoundRow(**row) for row in record.get("history", [])]
        log(INFO, "randquant: continuing after round %d.", self._done)
        return arrays

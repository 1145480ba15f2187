"""A model and its clients' data: updates of clients or their examples, and test accuracy."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn

from randquant._internal import validate
from randquant.channels.keys import Key
from randquant.local_training.curvature import gradients
from randquant.local_training.data import client_set, error_context
from randquant.local_training.dry_run import draws_numbers, takes_classes, work_mode
from randquant.local_training.group_steps import (
    SequentialClients,
    VectorizedClients,
    find_obstacle,
    is_linear,
    pass_width,
    shrinking_groups,
)
from randquant.local_training.local import GRADIENT, ONE_GRADIENT, Evaluation, Local, Work
from randquant.local_training.models import (
    ModelReplicas,
    called,
    copied,
    dropping_nothing,
    map_tensors,
    seeded,
    written_out,
)
from randquant.local_training.problem import (
    BatchReader,
    Loss,
    Problem,
    ServerStatistics,
    check_all_labels,
    make_problem,
)
from randquant.local_training.row_wise import Obstacle, Reading, read

MAX_GROUP_CLIENTS_ON_CPU = 20
"""Most clients that are computed together on a CPU. Groups of twice as many leave threads without
work in small cohorts; of half as many spend more time in calls of torch."""

LIGHT_PASS_NUMBERS = 250_000
"""Numbers in a client's pass, trained parameters included, below which calls of torch take longer
than the arithmetic. One vectorised pass over many clients is then faster than one pass per client,
and one thread is faster than two that wait for each other (`benchmarks/cohort.py`)."""

KEPT_NUMBERS_LIMIT, KEPT_NUMBERS_LIMIT_ON_GPU = 2**23, 2**27
"""Most numbers that a pass over several clients keeps for its gradients: 32 MiB on a CPU, 512 MiB
on a GPU. Twice as many need twice the memory on each thread. One client's pass may exceed it."""


class Learner:
    """Computes clients' updates: gradients of the mean loss over their local data.

    Clients are computed together by the rule that `Local` states, where a step has little
    arithmetic if its pass has fewer than `LIGHT_PASS_NUMBERS`; otherwise one after another. Models
    are in training mode for clients and in evaluation mode for tests.

    Args:
        problem: the model, the clients' data and the loss; none of it is changed.
        work: what a client computes.
        device: where the data and the model are: `cpu`, or a GPU as torch names it (`cuda`).
        apart: compute every client by itself, so that who else takes part changes no bit of its
            update.

    Attributes:
        obstacle: the reason why clients are computed one by one; None where they are computed
            together.

    Guarantees:
        Groups and shapes of passes follow from the model, the settings and the shape of an example:
        neither a client's data nor its number of examples change any bit of another's update.
        If training draws random numbers, as dropout does, a client's depend only on its key, and
        torch's own generator keeps its state.

    Raises:
        ValueError: torch sees no such device, or clients cannot be computed together with
            together=True.
    """

    def __init__(
        self,
        problem: Problem,
        work: Work = GRADIENT,
        device: str = "cpu",
        *,
        apart: bool = False,
    ) -> None:
        self._device = _checked_device(device)
        self.on_gpu = _is_gpu(self._device)
        self.problem, self._work, self._apart = problem, work, apart
        # Decided once, by the model and an example's shape, and for all clients alike.
        clipped = work.example_norm is not None
        model, reading, draws = _read(problem, clipped=clipped)
        pass_numbers = pass_width(work) * reading.numbers + problem.dimension
        light = pass_numbers < LIGHT_PASS_NUMBERS
        linear = is_linear(problem, reading.operations)
        self.obstacle = find_obstacle(problem, work, reading, draws=draws, apart=apart)
        if work.together is False:
            self.obstacle = Obstacle("together=False")
        elif work.together:
            # A user may vouch for unknown operations, but not for one that is known to mix clients.
            if self.obstacle is not None and self.obstacle.certain:
                raise ValueError(
                    "Expected clients that can be computed together with together=True, got "
                    f"{self.obstacle.reason}: leave together out, and they are computed one by one."
                )
            self.obstacle = None
        elif self.obstacle is None and not (clipped or self.on_gpu or linear or light):
            self.obstacle = Obstacle("steps that are faster one client a thread")
        self.together = self.obstacle is None
        # Where clients are computed one by one, torch's own layers are faster.
        model = model if self.together else problem.model
        model, self._data = _in_fastest_layout(problem, model, self._device, light=light)
        self._copies = ModelReplicas(model, problem.parts)
        self._loss = _on_device(problem.loss, self._device)
        self._statistics = None
        if problem.statistics is not None:
            replica = self._copies.for_server()
            self._statistics = ServerStatistics(replica, problem.statistics, self._device)
            self._refresh_statistics()
        on_device, by_vmap = (self._copies, self._data, self._loss), self.together and clipped
        # With together=True a user vouches for modules that are not known here: watch them.
        watched = bool(work.together)
        guarded = watched or "embedding" in reading.operations
        self._sequential = SequentialClients(
            problem, work, *on_device, by_vmap=by_vmap, guarded=by_vmap and guarded
        )
        self._vectorized = None
        if self.together and not clipped:
            self._vectorized = VectorizedClients(
                *on_device, work, linear=linear, watched=watched, guarded=guarded
            )
        # The global generators have one state for all threads: drawing needs a single thread.
        alone = self._vectorized is None
        self.one_thread = alone and (problem.dry_run.draws or light)
        self._group = _group_size(pass_numbers, on_gpu=self.on_gpu)

    def __reduce__(self) -> tuple[Any, ...]:
        # It is built anew where it is unpickled. Test data stay: no client computes with them.
        build = partial(Learner, apart=self._apart)
        return build, (replace(self.problem, test=None), self._work, str(self._device))

    @property
    def dimension(self) -> int:
        return sum(parameter.numel() for parameter in self._copies.trained().values())

    @property
    def examples(self) -> int:
        """Smallest number of examples that a client's gradient is the mean of."""
        # The more examples, the less one of them can move the mean: the smallest number counts.
        fewest = int(self.problem.clients.sizes.min())
        return fewest if self._work.batch is None else min(fewest, self._work.batch)

    def size(self, client: int) -> int:
        """Return a client's number of examples."""
        return len(self._data.source(client))

    def parameters(self) -> np.ndarray:
        """Return the loaded weights of the trained parameters as one vector, (d,) float32."""
        return self._copies.vector().cpu().numpy()

    def load(self, parameters: np.ndarray) -> None:
        """Load the weights of the trained parameters from one vector, (d,) float32."""
        start = 0
        # In place: replicas of all threads share these parameters.
        if self.on_gpu:
            flat = torch.from_numpy(parameters).to(self._device)
            with torch.no_grad():
                nn.utils.vector_to_parameters(flat, self._copies.trained().values())
        else:
            for parameter in self._copies.trained().values():
                # Through NumPy: torch's own threads would keep spinning and slow the workers down.
                weights = parameter.detach().numpy()
                weights[...] = parameters[start : start + weights.size].reshape(weights.shape)
                start += weights.size
        self._refresh_statistics()

    def _refresh_statistics(self) -> None:
        # Clients normalise with the statistics at the weights that they train from; from now on no
        # client may change them.
        if self._statistics is not None:
            self._statistics.refresh()
            self._copies.settle()

    def trained_model(self) -> nn.Module:
        """Return a copy of the problem's model with the loaded weights, in evaluation mode.

        Its parameters and buffers have the types of the user's model.
        """
        model = copied(self.problem.model)
        self._copies.fill(model, self.problem.types)
        return model.eval()

    def groups(self, cohort: Sequence[int], workers: int) -> list[Sequence[int]]:
        """Split the cohort into groups, each of which one thread computes at a time.

        Vectorised groups do not depend on `workers`, because grouping changes the last bits of
        their sums. Other clients are distributed a few at a time.
        """
        # Clients one by one differ in time, so that fixed groups would leave threads without work.
        if self._vectorized is None:
            return shrinking_groups(cohort, workers)
        return [cohort[start : start + self._group] for start in range(0, len(cohort), self._group)]

    def updates(
        self, clients: Sequence[int], key: Key | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute each client's update from the loaded weights, and its first step's mean loss.

        Args:
            clients: numbers of the clients.
            key: of the round, needed where batches or other random numbers are drawn; they depend
                on it and the client.

        Returns:
            Updates (n, d) float32, which the server's step subtracts, and losses (n,) float64, in
            the order of `clients`.
        """
        # Errors of a vectorised pass name no client: each operation is of all of them at once.
        if self._vectorized is not None:
            self._data.open(clients)
            steps = [self._sequential.steps(client, key) for client in clients]
            keys = self._dropout_keys(clients, key)
            updates, losses = self._vectorized.updates(clients, steps, keys)
        else:
            pairs = []
            for client in clients:
                with error_context(self.problem.clients.names[client]):
                    pairs.append(self._sequential.update(client, key))
            updates = torch.stack([update for update, _ in pairs])
            losses = np.array([loss for _, loss in pairs])
        return updates.cpu().numpy(), losses

    def _dropout_keys(self, clients: Sequence[int], key: Key | None) -> list[Key]:
        # By the client alone, and not by who else is computed with it.
        if not self.problem.dry_run.draws:
            return []
        assert key is not None
        return [key.fold_in("draws", client) for client in clients]

    def check(self) -> None:
        """Refuse a model that cannot compute the smallest step that a client has.

        Raises:
            ValueError: the model fails, as batch norm does on one example; or vmap fails, because
                it has no rule for an operation or the model branches on numbers.
        """
        # The smallest step is the hardest: batch norm, for example, fails on a single example.
        clients, batch = self.problem.clients, self._work.batch
        # Of clients that are read when their turn comes, the first stands for all.
        sizes = clients.sizes if clients.known else np.array([self.size(0)])
        steps = np.minimum(sizes, batch or sizes)
        if self._work.example_norm is not None:
            steps = np.ones_like(sizes)
        elif self._work.learning_rate is not None:
            steps = (sizes - 1) % steps + 1  # the last of an epoch
        client = int(steps.argmin())
        name, smallest = clients.names[client], [np.arange(steps[client])]
        try:
            self._sequential.update_from_steps(client, smallest, Key.from_seed(0))
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                f"Expected a model that learns from {steps[client]} of client {name}'s examples at "
                f"once, got {type(error).__name__}: {str(error).rstrip('.')}. Take another batch, "
                "or a layer that does not need the other examples."
            ) from error
        if self._vectorized is None:
            return
        try:
            keys = self._dropout_keys([client], Key.from_seed(0))
            self._vectorized.updates([client], [smallest], keys)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                "Expected a model and a loss that torch.func.vmap computes of several clients, got "
                f"{type(error).__name__}: {str(error).partition(chr(10))[0]} Give "
                "Local(together=False)."
            ) from error

    def evaluate(self, client: int | None = None) -> Evaluation:
        """Measure accuracy and loss of the loaded weights on test data, or on a client's data."""
        model, classes = self._copies.shared().eval(), self.problem.dry_run.classes
        binary = self.problem.binary
        correct, labels, loss, count = 0, 0, 0.0, 0
        by_class = ByClass(classes or 2)
        # Clients may be on several threads, which `seeded` does not allow, unless they draw.
        unseeded = client is not None and not self.problem.dry_run.draws
        with torch.inference_mode(), nullcontext() if unseeded else seeded(0, self._device):
            for features, targets in self._data.batches(client):
                output = called(model, features)
                if client is None and self.problem.raw is not None:
                    output = self.problem.raw(output)
                loss += float(self._loss(output, targets)) * len(targets)
                count += len(targets)
                # An output with a class at each place, as in segmentation, counts once for each.
                if classes is not None or binary:
                    hits = (
                        (output > 0) == (targets > 0.5) if binary else output.argmax(1) == targets
                    )
                    correct += int(hits.sum())
                    labels += targets.numel()
                    # A client that sends its accuracy sends no other figure of its data.
                    if client is None:
                        by_class.add(output, targets, hits)
        # The replica is this thread's for training as well.
        work_mode(model, self.problem.dry_run.still)
        accuracy, loss = correct / labels if labels else None, loss / count if count else None
        return Evaluation(accuracy, loss, *by_class.measured())


def _group_size(pass_numbers: float, *, on_gpu: bool) -> int:
    # Never by a client's number of examples: grouping changes how others' sums are rounded.
    if math.isinf(pass_numbers):
        # The model does not take zeros; a user who gives together=True expects small passes.
        return MAX_GROUP_CLIENTS_ON_CPU
    if on_gpu:
        return max(1, min(2**20, int(KEPT_NUMBERS_LIMIT_ON_GPU / pass_numbers)))
    return max(1, min(MAX_GROUP_CLIENTS_ON_CPU, int(KEPT_NUMBERS_LIMIT / pass_numbers)))


def _checked_device(name: str) -> torch.device:
    # torch.device accepts any number; an error would come only when the first tensor is moved.
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"Expected a device that torch sees, got {name!r} where it sees "
            f"{torch.cuda.device_count()} CUDA devices: leave device out to train on the CPU, or "
            "install a CUDA build of torch."
        )
    return device


def _read(problem: Problem, *, clipped: bool) -> tuple[nn.Module, Reading, bool]:
    # The model, with layers written out if that lets clients be computed together; what it does;
    # and whether a step draws numbers that no client's generator is asked for.
    still, clients, draws = problem.dry_run.still, problem.clients, problem.dry_run.draws
    model = written_out(problem.model)
    # Where examples are clipped, dropout draws by example, as torch's own layers do.
    if model is not None and not (clipped and draws):
        with dropping_nothing(model):
            reading = read(model, still, clients)
            draws = draws and draws_numbers(
                model, clients.made_up(problem.dry_run.classes), problem.loss
            )
        if reading.obstacle is None and not draws:
            return model, reading, False
    return problem.model, read(problem.model, still, clients), problem.dry_run.draws


def _in_fastest_layout(
    problem: Problem, model: nn.Module, device: torch.device, *, light: bool
) -> tuple[nn.Module, BatchReader]:
    convolutional = any(isinstance(layer, nn.Conv2d) for layer in problem.model.modules())
    # Channels last makes convolutions faster on a CPU, unless calls take longer than arithmetic.
    layout = torch.contiguous_format
    if convolutional and not light and not _is_gpu(device) and _takes_channels_last(problem):
        layout = torch.channels_last
    model = copied(model).to(device, memory_format=layout)  # type: ignore[call-overload]
    work_mode(model, problem.dry_run.still)
    return model, BatchReader(problem, device, layout)


GRADIENT_ROUNDING_ERROR = 5e-3
"""Relative difference that rounding to float32 may cause between two gradients of one batch.

Another layout changes the order of sums; a layout that a model misreads changes the gradient as a
whole."""


def _takes_channels_last(problem: Problem) -> bool:
    # A model or a loss that views the output of a convolution as rows does not take this layout,
    # or takes the numbers in another order. Made-up examples decide, never a client's.
    gradients_by_layout = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = copied(problem.model).to(memory_format=layout)  # type: ignore[call-overload]
        work_mode(model, problem.dry_run.still)
        weights = list(ModelReplicas(model, problem.parts).trained().values())
        made_up = problem.clients.made_up(problem.dry_run.classes)
        try:
            with seeded(0):
                convert = partial(torch.Tensor.contiguous, memory_format=layout)
                features = map_tensors(convert, made_up.features)
                batch = features, made_up.targets
                parts = gradients(model, weights, batch, problem.loss).parts
                gradients_by_layout.append(torch.cat([part.reshape(-1) for part in parts]))
                called(model.eval(), batch[0])
        except Exception:  # of the user's own model or loss
            return False
    one, other = gradients_by_layout
    return bool((other - one).norm() <= GRADIENT_ROUNDING_ERROR * one.norm())


def _is_gpu(device: torch.device) -> bool:
    return device.type != "cpu"


def _on_device(loss: Loss, device: torch.device) -> Loss:
    # A copy, because a module's tensors, such as weights of classes, would move the user's own.
    return copy.deepcopy(loss).to(device) if isinstance(loss, nn.Module) else loss


MIN_IMBALANCE_RATIO = 1.5
"""Classes are imbalanced if the most frequent has this many times the examples of the rarest.

Test data of equally frequent classes, drawn at random, differ by less; at half as much again,
naming the larger of two classes for all is right for 60 %."""


class ByClass:
    """The outputs of a classifier for test data, batch by batch.

    Args:
        classes: how many; 2 with one binary logit.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._targets: list[np.ndarray] = []
        self._right: list[np.ndarray] = []
        self._scores: list[np.ndarray] = []

    def add(self, output: Tensor, targets: Tensor, right: Tensor) -> None:
        """Add a batch: outputs (n, classes), or binary logits (n,) or (n, 1); the others (n,)."""
        count = len(targets)
        if targets.numel() != count:
            return  # a class at each place, or several tags: no example has one class
        if self._classes == 2:
            logits = output.reshape(count, -1).cpu().double().numpy()
            # Exact differences of float32: a softmax would make ties of scores that differ.
            scores = logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits[:, 0]
            self._scores.append(scores)
        self._targets.append(targets.reshape(-1).round().cpu().numpy())
        self._right.append(right.reshape(-1).cpu().numpy())

    def measured(self) -> tuple[float | None, float | None]:
        """Return `balanced_accuracy` and `auc` of all batches; None where they do not apply."""
        targets = np.concatenate([np.zeros(0), *self._targets]).astype(np.int64)
        # A loss of somebody's own may give a meaning to other labels.
        if not len(targets) or targets.min() < 0 or targets.max() >= self._classes:
            return None, None
        area = auc(targets == 1, np.concatenate(self._scores)) if self._classes == 2 else None
        return balanced_accuracy(targets, np.concatenate(self._right)), area


def balanced_accuracy(targets: np.ndarray, right: np.ndarray) -> float | None:
    """Return the mean of the classes' accuracies, each class counting the same.

    Args:
        targets: (n,) classes from 0.
        right: (n,) whether each prediction is right.

    Returns:
        It, in [0, 1], over the classes that occur; None unless they are imbalanced
        (MIN_IMBALANCE_RATIO). Naming the same class for all has 1 / classes.

    Example:
        >>> balanced_accuracy(np.array([0] * 9 + [1]), np.array([True] * 9 + [False]))
        0.5
    """
    seen = np.bincount(targets)
    occurs = seen > 0
    if seen.max() < MIN_IMBALANCE_RATIO * seen[occurs].min():
        return None
    shares = np.bincount(targets, weights=right)[occurs] / seen[occurs]
    return float(shares.mean())


def auc(positive: np.ndarray, scores: np.ndarray) -> float | None:
    """Return the area under the ROC curve: how often a positive scores above a negative.

    Args:
        positive: (n,) whether each example is of the positive class.
        scores: (n,) larger for what is more likely positive; equal scores count one half.

    Returns:
        It, in [0, 1], where 0.5 tells nothing apart; None if one class is missing, or a score is
        not a number.

    References:
        Hanley and McNeil 1982: it is the Wilcoxon statistic of the ranks.

    Example:
        >>> auc(np.array([False, False, True, True]), np.array([0.1, 0.4, 0.4, 0.8]))
        0.875
    """
    above, below = int(positive.sum()), int((~positive).sum())
    if not above or not below or np.isnan(scores).any():
        return None
    ranks = rankdata(scores)[positive].sum()
    return float((ranks - above * (above + 1) / 2) / (above * below))


MAX_EXAMPLES = 2**25
"""Most examples of a client: their clipped gradients are then summed with an error of at most
2**-22 clip_norm (`ClippedSum`). With twice as many the bound of Proposition 16 in
`docs/theory/vector.md` would have no room left for the other roundings."""


def example_update(
    model: nn.Module,
    data: Any,
    loss: Loss = nn.functional.cross_entropy,
    *,
    clip_norm: float,
    local: Local = ONE_GRADIENT,
) -> dict[str, Tensor]:
    """Compute a client's update as a sum over its examples, none of which weighs more than another.

    It is minus the sum of the examples' gradients, each clipped to clip_norm. A training function
    of Flower or NVFlare returns it where the guarantee is for one example, once a round, computed
    at the model that the server has sent: `QuantizeMod(examples=N)` or `QuantizeFilter(examples=N)`
    divides it by the public number N. Then a client with more examples counts for more, and with
    N all examples over the number of clients the mean over the clients is that over all examples.
    `train(privacy=Privacy(unit="example"))` does the same in a simulation.

    Args:
        model: as the server has sent it; it is not changed.
        data: the client's examples, in any form that `train` takes for a client.
        loss: from (outputs, targets) to the mean loss.
        clip_norm: L2 threshold of one example's gradient, at most that of the mechanism.
        local: which parts are trained, what is done about running statistics, the columns of a
            table, the device, and whether examples are computed together.

    Returns:
        What is to be added to each trained parameter, before it is divided by N: by name, float32
        on the CPU. Send it as an update, not added to the model: the difference of two rounded
        models can move by more than one example's share.

    Guarantees:
        Once it was divided by any N and clipped to a mechanism's clip_norm, replacing one example
        moves it by at most (2 / N + 2**-20) · clip_norm, however many examples the client has. An
        example whose gradient overflows counts as one without a gradient. The model and
        the loss must treat each example by itself; what they keep of one in an attribute is
        refused, what a function or a global variable keeps is not seen.

    Raises:
        TypeError, ValueError: as `train` refuses a model, a client's data or a loss; local steps
        are asked for; or the client has more than 2**25 examples. A client whose
        data hold NaN, infinity or a label beyond the model's is refused too, and its silence is
        not covered: clean data first, example by example.

    References:
        `docs/theory/vector.md`, Proposition 16.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x, y = torch.eye(2), torch.tensor([[1000.0], [-1000.0]])
        >>> update = example_update(model, (x, y), torch.nn.functional.mse_loss, clip_norm=1.0)
        >>> update["weight"].numpy().round(3)
        array([[ 1., -1.]], dtype=float32)
    """
    clip_norm = validate.real("clip_norm", clip_norm, low=1e-30, high=1e30)
    validate.kind("local", local, Local)
    steps = local.learning_rate or local.batch or local.standardize or (local.epochs or 1) > 1
    if steps:
        raise ValueError(
            "Expected one gradient of each of a client's examples, got local with batch, epochs, "
            "standardize or steps of a learning_rate: after a step each gradient depends on all "
            "examples, so leave them out."
        )
    problem = _make_problem(model, data, loss, local)
    count = int(problem.clients.sizes[0])
    if count > MAX_EXAMPLES:
        raise ValueError(
            f"Expected at most {MAX_EXAMPLES:,} examples of one client, got {count:,}: rounding "
            "their sum might move it further than one of them does; give some of them."
        )
    work = Work(example_norm=clip_norm, summed=True, together=local.together)
    learner = Learner(problem, work, local.device)
    # Dropout draws from this key, so that one example's draws change no other's gradient.
    updates, _ = learner.updates([0], Key.generate())
    flat = -torch.from_numpy(updates[0])
    parts = flat.split([shape.numel() for shape in map(torch.Size, problem.shapes)])
    shaped = zip(problem.parts, parts, problem.shapes, strict=True)
    return {name: part.reshape(shape) for name, part, shape in shaped}


def _make_problem(model: nn.Module, data: Any, loss: Loss, local: Local) -> Problem:
    """Check a model on made-up examples, so that no example of the client's decides the outcome."""
    clients = client_set([data], local.columns, takes_classes(loss))
    made_up = clients.made_up()
    settings = {
        "loss": loss, "parts": local.parts, "frozen": local.frozen, "buffers": local.buffers,
        "public": local.public,
    }  # fmt: skip
    try:
        tried = make_problem(model, [(made_up.features, made_up.targets)], **settings)
    except (TypeError, ValueError):  # some models need real numbers, as lengths of sequences
        return make_problem(model, [data], columns=local.columns, **settings)
    problem = replace(tried, clients=clients)
    check_all_labels(problem)
    return problem

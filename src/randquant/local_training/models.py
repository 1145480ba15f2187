"""Models: how they are seeded, called with several inputs, and copied for each thread.

Several clients are computed at once by vmap: recurrent layers and dropout are written out in
operations that it has rules for, and a `ClientGuard` keeps clients apart in look-ups.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from randquant.channels.keys import Key

# Global random generators, which layers such as dropout and data sets that augment draw from.

CPU = torch.device("cpu")


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Run with the global generators seeded: torch's on the CPU and a device, NumPy's, Python's.

    Afterwards they are as they were. The generators belong to the whole process: only one thread
    at a time may use this.
    """
    on_gpu = device.type == "cuda"
    # NumPy's and Python's generators too: data sets that augment draw from them.
    numpys, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if on_gpu else []):
            seed_cpu(seed)
            if on_gpu:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield
    finally:
        np.random.set_state(numpys)  # noqa: NPY002
        random.setstate(pythons)


def seed_cpu(seed: int) -> None:
    """Seed the generators of the CPU; within `seeded`, which puts them back."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (data sets of others draw from it)
    random.seed(seed)


def drawn() -> tuple[bytes, bytes, object]:
    """Return the state of the global generators, which differs once a number is drawn."""
    state = torch.get_rng_state().numpy().tobytes()
    legacy: Any = np.random.get_state()  # noqa: NPY002
    return state, legacy[1].tobytes() + bytes(str(legacy[2]), "ascii"), random.getstate()


# Features may be one tensor or several: each function below treats all of them alike.

Features = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""Inputs of a model: one tensor, or a tuple or dict of tensors of the same examples."""


def tensors(features: Features) -> list[Tensor]:
    if isinstance(features, dict):
        return list(features.values())
    return list(features) if isinstance(features, tuple) else [features]


def map_tensors(function: Callable[..., Any], *features: Any) -> Any:
    """Apply a function to each tensor, together with its counterparts in the other features.

    Example:
        >>> map_tensors(lambda one, other: one + other, (1, 2), (10, 20))
        (11, 22)
    """
    first = features[0]
    if isinstance(first, dict):
        return {name: function(*(each[name] for each in features)) for name in first}
    if isinstance(first, tuple):
        return tuple(function(*each) for each in zip(*features, strict=True))
    return function(*features)


def called(
    model: nn.Module, features: Features, weights: Mapping[str, Tensor] | None = None
) -> Any:
    """Call a model as torch does: `model(x)`, `model(*features)` or `model(**features)`.

    Args:
        model: the model.
        features: of a batch.
        weights: parameters to take instead of the model's own, by name.

    Returns:
        The output, or its `logits` where it has some, as outputs of Hugging Face's models do.
    """
    by_name = features if isinstance(features, dict) else {}
    in_order = () if by_name else features if isinstance(features, tuple) else (features,)
    if weights is None:
        output = model(*in_order, **by_name)
    else:
        output = functional_call(model, dict(weights), in_order, by_name)
    return getattr(output, "logits", output)


def described(features: Features, words: Callable[[Tensor], str]) -> str:
    """Describe each tensor in words; a dict's with their names."""
    texts = map_tensors(words, features)
    if isinstance(texts, dict):
        return ", ".join(f"{name} {text}" for name, text in texts.items())
    return " and ".join(texts) if isinstance(texts, tuple) else texts


def parameters_and_buffers(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def copied(model: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """Copy a model, which shares these tensors with it.

    Tensors that layers compute from parameters, as weight_norm does, are detached in the copy,
    because torch refuses to copy others. Layers compute them anew.

    Raises:
        ValueError: the model cannot be copied.
    """
    # deepcopy takes what is in `memo` as copied already: these tensors stay the same objects.
    memo = {id(tensor): tensor for tensor in shared}
    for layer in model.modules():
        for value in vars(layer).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError, copy.Error) as error:
        raise ValueError(
            f"Expected a model that can be copied, got {type(error).__name__} from copy.deepcopy: "
            f"{str(error).rstrip('.')}. Build it without the attribute that cannot be copied."
        ) from error


def in_float32(model: nn.Module) -> nn.Module:
    """Return the model, or a copy in float32, the type of features, if no parameter has it."""
    kinds = {parameter.dtype for parameter in model.parameters()}
    if not kinds or torch.float32 in kinds:
        return model
    # float() leaves complex parameters as they are.
    return copied(model).float()._apply(lambda each: each.cfloat() if each.is_complex() else each)


class ModelReplicas:
    """A model, and replicas of it for each thread.

    Two threads must not share a model: functional_call swaps its weights while it runs, and a
    module may store results in its attributes. Buffers are shared, because no step changes them.

    Args:
        model: the model; only `parts` of its parameters get gradients.
        parts: names of the trained parameters.
    """

    def __init__(self, model: nn.Module, parts: Sequence[str]) -> None:
        self._model, self._parts = model, parts
        self._threads = threading.local()
        # Parameters that are not trained get no gradients, which saves their part of the work.
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in parts)
        self.settle()

    def settle(self) -> None:
        """Record the present buffers and weights, which `check` lets no client change."""
        self._versions = {name: each._version for name, each in named_tensors(self._model).items()}
        # torch's own batch_norm writes running statistics without a new version.
        self._numbers = {name: each.clone() for name, each in self._model.named_buffers()}

    def check(self) -> None:
        """Refuse the work of a client that changed what the next client would see.

        Raises:
            ValueError: a buffer of this thread's replicas, or a loaded weight, has changed since
                `settle`.
        """
        current = named_tensors(self._model)
        changed = [name for name, each in current.items() if each._version != self._versions[name]]
        changed += [name for name, each in self._numbers.items() if not equal(each, current[name])]
        for model in vars(self._threads).values():
            buffers = dict(model.named_buffers())
            for name in {**dict(self._model.named_buffers()), **buffers}:
                # A layer may also have put a new tensor where there was another one, or None.
                if buffers.get(name) is not current.get(name):
                    changed.append(name)
        if changed:
            raise ValueError(
                "Expected buffers and loaded weights that training leaves unchanged, got a new "
                f"value of {changed[0]}: other clients would see this client's data; replace its "
                "layer or freeze it."
            )

    def trained(self, model: nn.Module | None = None) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name, of the model or of a replica."""
        every = dict((model or self._model).named_parameters())
        return {name: every[name] for name in self._parts}

    def weights(self) -> dict[str, Tensor]:
        # Detached: local steps from these weights must not build a graph back to the loaded ones.
        return {name: parameter.detach() for name, parameter in self.trained().items()}

    def vector(self) -> Tensor:
        return torch.cat([weight.reshape(-1) for weight in self.weights().values()])

    def fill(self, model: nn.Module, types: Sequence[torch.dtype]) -> None:
        """Copy the loaded weights and buffers into a model.

        Args:
            model: of the same layers.
            types: of its `parameters_and_buffers`, to which they are converted.
        """
        with torch.no_grad():
            for weight, loaded in zip(
                self.trained(model).values(), self.trained().values(), strict=True
            ):
                weight.copy_(loaded)
            for buffer, loaded in zip(model.buffers(), self._model.buffers(), strict=True):
                buffer.copy_(loaded)
        # Last: the numbers are copied in float32, and converted once.
        for tensor, kind in zip(parameters_and_buffers(model), types, strict=True):
            tensor.data = tensor.data.to(kind)

    def writable(self) -> nn.Module:
        """Return this thread's replica with weights that it may overwrite."""
        if not hasattr(self._threads, "writable"):
            self._threads.writable = copied(self._model, self._model.buffers())
        return self._threads.writable

    def shared(self) -> nn.Module:
        """Return this thread's replica with the loaded weights."""
        if not hasattr(self._threads, "shared"):
            self._threads.shared = self.for_server()
        return self._threads.shared

    def for_server(self) -> nn.Module:
        # No worker thread has this replica, so that none sees the modes that the server sets.
        return copied(self._model, parameters_and_buffers(self._model))


def equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN.

    A buffer that has always held NaN has not changed.
    """
    return torch.equal(one, other) or bool(((one == other) | (one != one) & (other != other)).all())


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(itertools.chain(model.named_buffers(), model.named_parameters()))


def check_graph(loss: Tensor, model: nn.Module) -> None:
    """Refuse a loss or a model that depends on a parameter which is not the model's own."""
    parameters = {id(parameter) for parameter in model.parameters()}
    # Through the graph of the loss: its leaves are the parameters that it depends on.
    left, known = [loss.grad_fn], set()
    while left:
        node: Any = left.pop()
        if node is None or node in known:
            continue
        known.add(node)
        left += [before for before, _ in node.next_functions]
        other = getattr(node, "variable", None)
        if other is not None and id(other) not in parameters:
            raise ValueError(
                f"Expected a loss of the output and the targets, got a dependence on a parameter "
                f"of shape {tuple(other.shape)} which is not the trained model's: a copy of your "
                "model is trained, so a penalty on your model's weights would be one on "
                "constants. Give Server('SGD', options={'weight_decay': 0.01}) for weight decay, "
                "keep layers in nn.ModuleList, and call requires_grad_(False) on what is constant."
            )


def is_batch_norm(layer: nn.Module) -> bool:
    """Return whether a layer is a BatchNorm that keeps running statistics."""
    norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    return norm and bool(layer.track_running_stats)


# Recurrent layers and dropout written out in operations that vmap has rules for.

RECURRENT_KINDS = (nn.RNN, nn.GRU, nn.LSTM)


def written_out(model: nn.Module) -> nn.Module | None:
    """Return a copy with layers of `WRITTEN_OUT` and `MaskedDropout`; None if it needs none.

    Parameters have the same names and order. Outputs differ in rounding only, and in what dropout
    draws.
    """
    if not any(_replaced(layer) for layer in model.modules()):
        return None
    model, masks = copied(model), Masks()
    for layer in model.modules():
        if _replaced(layer):
            # By subclasses of torch's own: a model may ask for a layer's kind, or its attributes.
            layer.__class__ = {**WRITTEN_OUT, nn.Dropout: MaskedDropout}[type(layer)]
            if isinstance(layer, MaskedDropout):
                layer.masks = masks
    return model


def _replaced(layer: Any) -> bool:
    # By exact types: a subclass, or a forward function of an instance, may compute something else.
    if "forward" in vars(layer):
        return False
    if type(layer) is nn.Dropout:
        return not layer.inplace  # a model may go on with the input, which it then changes
    return type(layer) in RECURRENT_KINDS and not layer.proj_size


class Masks:
    """Masks that the dropout layers of a model multiply by, in the order of their calls.

    Attributes:
        left: for the calls to come; None to let torch draw.
        report: called with the shape and the rate of each call, which then returns its input; None
            to drop.
    """

    def __init__(self) -> None:
        self.left: list[Tensor] | None = None
        self.report: Callable[[torch.Size, float], object] | None = None

    @staticmethod
    def of(model: nn.Module) -> Masks | None:
        layers = (each.masks for each in model.modules() if isinstance(each, MaskedDropout))
        return next(layers, None)


class MaskedDropout(nn.Dropout):
    """Dropout whose draws can be given: each client's by its key."""

    masks: Masks

    def forward(self, input: Tensor) -> Tensor:
        """Multiply by the next mask, or let torch draw one if none are given."""
        if not self.training or self.p == 0:
            return input
        if self.masks.report is not None:
            self.masks.report(input.shape, self.p)
            return input
        if self.masks.left is None:
            return functional.dropout(input, self.p)
        return input * self.masks.left.pop(0)


class ClientMasks:
    """Draws the masks of several clients, each from its own key.

    Args:
        model: of `written_out`, in training mode.
        keys: of each client; none where the model does not draw.
        device: of the model.
    """

    def __init__(self, model: nn.Module, keys: Sequence[Key], device: torch.device) -> None:
        self._model, self._keys = model, keys
        self._generator = torch.Generator(device)
        self._calls: list[tuple[torch.Size, float]] | None = None

    def draw(self, features: Features, number: int, start: int) -> list[Tensor]:
        """Draw the masks (n, s, ...) of each call, for the clients' examples (n, s, ...).

        Args:
            features: of each client, in one pass.
            number: of the step.
            start: place of the pass in it. Other clients may need more passes of a step: what a
                client draws in the next one must not depend on that.
        """
        if not self._keys:
            return []
        if self._calls is None:
            one = map_tensors(lambda each: each[0], features)
            self._calls = calls = []
            report = lambda *call: calls.append(call)  # noqa: E731
            with torch.no_grad(), dropping_nothing(self._model, report):
                called(self._model, one)
        each_client = []
        for key in self._keys:
            self._generator.manual_seed(int(key.fold_in(number, start).words(1)[0]))
            each_client.append([self._mask(*call) for call in self._calls])
        return [torch.stack(masks) for masks in zip(*each_client, strict=True)]

    def _mask(self, shape: torch.Size, rate: float) -> Tensor:
        kept = torch.empty(shape, device=self._generator.device)
        kept.bernoulli_(1 - rate, generator=self._generator)
        return kept.div_(1 - rate) if rate < 1 else kept


@contextmanager
def with_masks(model: nn.Module, masks: Sequence[Tensor]) -> Iterator[None]:
    """Let the dropout layers of a model multiply by these masks in one call of it."""
    holder = Masks.of(model)
    if holder is None:
        yield
        return
    holder.left = list(masks)
    try:
        yield
    finally:
        holder.left = None


@contextmanager
def dropping_nothing(
    model: nn.Module, report: Callable[[torch.Size, float], object] = lambda *_: None
) -> Iterator[None]:
    """Let dropout return its input, and report the shape and the rate of each call."""
    holder = Masks.of(model) or Masks()
    holder.report = report
    try:
        yield
    finally:
        holder.report = None


class WrittenOut:
    """The function of a recurrent layer, called as that layer is, with the same parameters.

    Batches of sequences of one length only: packed and single sequences raise an error, and their
    models keep torch's own layers.

    References:
        torch.nn.RNN, GRU and LSTM, whose formulas, names and order of weights are used.
    """

    mode: str
    batch_first: bool
    hidden_size: int
    num_layers: int
    dropout: float
    bidirectional: bool
    training: bool

    def flatten_parameters(self) -> None:
        """Do nothing: models may call it before the layer, for torch's own layout of weights."""

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Return outputs of the last layer at each step, and the last states of all layers."""
        if input.ndim != 3 or (self.dropout and self.training and self.num_layers > 1):
            raise TypeError("Expected batches of sequences, without dropout between layers.")
        time = 1 if self.batch_first else 0
        start = hx if hx is None or self.mode == "LSTM" else (hx,)
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in ("", "_reverse")[: 2 if self.bidirectional else 1]:
                state = None if start is None else tuple(each[len(ends)] for each in start)
                steps, end = self._run(input, time, state, f"l{layer}{direction}")
                outputs.append(torch.stack(steps, time))
                ends.append(end)
            input = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        states = tuple(torch.stack(each) for each in zip(*ends, strict=True))
        return input, states if self.mode == "LSTM" else states[0]

    def _run(
        self, input: Tensor, time: int, state: tuple[Tensor, ...] | None, suffix: str
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        kinds = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        into, into_bias, matrix, bias = (getattr(self, f"{k}_{suffix}", None) for k in kinds)
        assert into is not None
        assert matrix is not None
        # The inputs' part of all steps at once: it does not depend on the state.
        steps = list(functional.linear(input, into, into_bias).unbind(time))
        first = torch.zeros_like(steps[0][..., : self.hidden_size])
        state = state or (first,) * (2 if self.mode == "LSTM" else 1)
        if backwards := suffix.endswith("_reverse"):
            steps.reverse()
        outputs = []
        for gates in steps:
            state = _step(self.mode, gates, functional.linear(state[0], matrix, bias), state)
            outputs.append(state[0])
        return outputs[::-1] if backwards else outputs, state


WRITTEN_OUT: dict[type, type] = {
    kind: type(f"WrittenOut{kind.__name__}", (WrittenOut, kind), {}) for kind in RECURRENT_KINDS
}
"""Subclasses of torch's recurrent layers with the function of `WrittenOut`."""


def _step(mode: str, gates: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    # The states (s, h) after a step, from the gates (s, g) of its input and of the last output.
    if mode == "GRU":
        reset, update, new = gates.chunk(3, -1)
        from_reset, from_update, from_new = hidden.chunk(3, -1)
        new = torch.tanh(new + torch.sigmoid(reset + from_reset) * from_new)
        return (new + torch.sigmoid(update + from_update) * (state[0] - new),)
    total = gates + hidden
    if mode == "LSTM":
        enter, forget, new, leave = total.chunk(4, -1)
        cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(cell), cell
    return (torch.relu(total) if mode == "RNN_RELU" else torch.tanh(total),)


class ClientGuard(TorchFunctionMode):
    """Keeps clients apart where one client's numbers may make an operation fail.

    Attributes:
        kind: of the last error that an operation raised, even if the model caught it; or empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        try:
            # Both ways to look up a table, because a model may call the function beneath directly.
            if func is nn.functional.embedding:
                return _embedded(*args, **options)
            if func in TABLE_LOOKUPS:
                return _looked_up(*args, **options)
            return func(*args, **options)
        except Exception as error:
            # A model that catches it would compute all clients of the pass in another way.
            self.kind = type(error).__name__
            raise


TABLE_LOOKUPS = (
    torch.embedding, torch.ops.aten.embedding, torch.ops.aten.embedding.default,
)  # fmt: skip
"""Functions that `nn.functional.embedding` calls, which take the table as their first argument."""


def _embedded(input: Tensor, weight: Tensor, *args: Any, **options: Any) -> Tensor:
    # In a vectorised pass, torch 2.13 puts the clients' tables one after another and does not check
    # an index against its own table: an index beyond the last row would read the next client's.
    # Such an index gives NaN here, so that this client alone is refused.
    # Clamped before the look-up, because an index beyond the table may be beyond memory as well.
    rows = weight.shape[0]
    vectors = nn.functional.embedding(input.clamp(0, rows - 1), weight, *args, **options)
    return torch.where(((input >= 0) & (input < rows))[..., None], vectors, math.nan)


def _looked_up(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    # This function takes -1 for no padding; the public one takes None, and -1 for the last row.
    padding = None if padding_idx < 0 else padding_idx
    options = {"scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
    return _embedded(indices, weight, padding, **options)

"""Recurrent layers and dropout in operations that vmap has rules for; pooling in a fast layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from randquant.channels.keys import Key
from randquant.local_training.models import Features, called, copied, map_tensors

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


class FastPooling(TorchFunctionMode):
    """Lets max_pool2d read its inputs with channels last, as torch's vectorised kernel needs them.

    On a CPU it is then two to four times as fast, with the same outputs. It is for passes without
    gradients: a backward pass would go on with two layouts at once, and take longer.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch as the model does, with another layout if it is max_pool2d."""
        if func in _POOLING and args and args[0].ndim == 4 and not torch.is_grad_enabled():
            # By a view of a copy, because vmap takes no memory format.
            args = (args[0].movedim(1, -1).contiguous().movedim(-1, 1), *args[1:])
        return func(*args, **(kwargs or {}))


# A model's call reaches a mode as that of the function which it calls.
_POOLING = (torch.max_pool2d, functional.max_pool2d)


def pool_fast(model: nn.Module) -> None:
    """Let a model compute in `FastPooling`, unless its forward function is an instance's own."""
    kind: Any = type(model)
    if "forward" in vars(model):
        return

    def forward(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        with FastPooling():
            return kind.forward(self, *inputs, **options)

    # By a subclass, as above: attributes and parameters are the model's own.
    model.__class__ = type(kind.__name__, (kind,), {"forward": forward})

"""Recurrent layers written out step by step, in operations that vmap has rules for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from randquant.local_training.models import copied

RECURRENT_LAYERS = (nn.RNN, nn.GRU, nn.LSTM)


def written_out(model: nn.Module) -> nn.Module | None:
    """Return a copy of a model whose recurrent layers are `WrittenOut`; None if it has none.

    Parameters have the same names and order, and outputs differ in rounding only.
    """
    # By exact types: a subclass may compute something else.
    if not any(type(layer) in RECURRENT_LAYERS for layer in model.modules()):
        return None
    model = copied(model)
    # One new layer for each old one, which may stand in several places.
    new: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, layer in parent._modules.items():
            if layer is not None and _can_be_written_out(layer):
                parent._modules[name] = new.setdefault(layer, WrittenOut(layer))
    return model if new else None


def _can_be_written_out(layer: Any) -> bool:
    own_forward = "forward" in vars(layer)
    return type(layer) in RECURRENT_LAYERS and not layer.proj_size and not own_forward


class WrittenOut(nn.Module):
    """The function of a recurrent layer, called as that layer is, with the same parameters.

    Batches of sequences of one length only: packed and single sequences raise an error, and their
    models keep torch's own layers.

    References:
        torch.nn.RNN, GRU and LSTM, whose formulas, names and order of weights are used.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        self.mode, self.batch_first = layer.mode, layer.batch_first
        self.input_size, self.hidden_size = layer.input_size, layer.hidden_size
        self.num_layers, self.bias = layer.num_layers, layer.bias
        self.dropout, self.bidirectional = layer.dropout, layer.bidirectional

    def flatten_parameters(self) -> None:
        """Do nothing: models may call it before the layer, for torch's own layout of weights."""

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Return outputs of the last layer at each step, and the last states of all layers."""
        if input.ndim != 3 or (self.dropout and self.training and self.num_layers > 1):
            raise TypeError("Expected batches of sequences, without dropout between layers.")
        time = 1 if self.batch_first else 0
        given = hx if hx is None or self.mode == "LSTM" else (hx,)
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in ("", "_reverse")[: 2 if self.bidirectional else 1]:
                state = None if given is None else tuple(each[len(ends)] for each in given)
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

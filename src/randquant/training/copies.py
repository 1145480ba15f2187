"""Each thread's own copies of a model."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Iterable, Sequence

from torch import Tensor, nn


class Copies:
    """A model, and a copy for each thread that works with it.

    functional_call puts weights into a model while it runs, and a module may keep what it
    computes: two threads at once must not share one. Buffers are shared, as no step changes them.

    Args:
        model: the model; only `parts` of its parameters get gradients.
        parts: names of the trained parameters.
    """

    def __init__(self, model: nn.Module, parts: Sequence[str]) -> None:
        self._model, self._parts = model, parts
        self._threads = threading.local()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in parts)

    def trained(self, model: nn.Module | None = None) -> dict[str, nn.Parameter]:
        """The trained parameters, by name, of the model or of a copy."""
        every = dict((model or self._model).named_parameters())
        return {name: every[name] for name in self._parts}

    def weights(self) -> dict[str, Tensor]:
        """The loaded weights of the trained parameters, by name."""
        return {name: parameter.detach() for name, parameter in self.trained().items()}

    def own(self) -> nn.Module:
        """This thread's copy, with weights of its own."""
        if not hasattr(self._threads, "own"):
            self._threads.own = self._copy(self._model.buffers())
        return self._threads.own

    def shared(self) -> nn.Module:
        """This thread's copy, with the loaded weights."""
        if not hasattr(self._threads, "shared"):
            shared = itertools.chain(self._model.parameters(), self._model.buffers())
            self._threads.shared = self._copy(shared)
        return self._threads.shared

    def _copy(self, shared: Iterable[Tensor]) -> nn.Module:
        """A copy of the model that shares these tensors with it."""
        return copy.deepcopy(self._model, {id(tensor): tensor for tensor in shared})

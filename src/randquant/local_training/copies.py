"""Each thread's own copies of a model."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

# Global random generators, which layers such as dropout and data sets that augment draw from.

CPU = torch.device("cpu")


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Run with the global generators seeded: torch's on the CPU and a device, NumPy's, Python's.

    Afterwards they are as they were. They belong to all threads: only one may be in here.
    """
    there = device.type == "cuda"
    numpys, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if there else []):
            seed_cpu(seed)
            if there:
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
    """The state of the global generators."""
    state = torch.get_rng_state().numpy().tobytes()
    legacy: Any = np.random.get_state()  # noqa: NPY002
    return state, legacy[1].tobytes() + bytes(str(legacy[2]), "ascii"), random.getstate()


# Features of one tensor or of several: how they are sliced, joined and given to a model.

Features = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""What a model is called with: one tensor, or a tuple or dict of tensors of the same examples."""


def tensors(features: Features) -> list[Tensor]:
    """Return all tensors of the features."""
    if isinstance(features, dict):
        return list(features.values())
    return list(features) if isinstance(features, tuple) else [features]


def of_each(function: Callable[..., Any], *features: Any) -> Any:
    """Apply a function to each tensor, with those in the same place of the other features.

    Example:
        >>> of_each(lambda one, other: one + other, (1, 2), (10, 20))
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
        The output; of one with `logits`, as Hugging Face's models return it, the logits.
    """
    named = features if isinstance(features, dict) else {}
    places = () if named else features if isinstance(features, tuple) else (features,)
    if weights is None:
        output = model(*places, **named)
    else:
        output = functional_call(model, dict(weights), places, named)
    return getattr(output, "logits", output)


def described(features: Features, words: Callable[[Tensor], str]) -> str:
    """Describe each tensor in words; a dict's with their names."""
    texts = of_each(words, features)
    if isinstance(texts, dict):
        return ", ".join(f"{name} {text}" for name, text in texts.items())
    return " and ".join(texts) if isinstance(texts, tuple) else texts


def stored(model: nn.Module) -> list[Tensor]:
    """Return a model's parameters and buffers."""
    return [*model.parameters(), *model.buffers()]


def copied(model: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """Copy a model, which shares these tensors with it.

    What layers have computed from their parameters, as those of weight_norm do, is detached from
    them, or torch would not copy it; they compute it anew.

    Raises:
        ValueError: the model cannot be copied.
    """
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
            f"{str(error).rstrip('.')}. Build it anew without what holds that."
        ) from error


def in_float32(model: nn.Module) -> nn.Module:
    """Return the model, or a copy in float32 if none of its parameters is: features are."""
    kinds = {parameter.dtype for parameter in model.parameters()}
    if not kinds or torch.float32 in kinds:
        return model
    narrow = copied(model).float()
    return narrow._apply(lambda each: each.cfloat() if each.is_complex() else each)


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
        self.settle()

    def buffers(self) -> list[Tensor]:
        """The model's buffers, which all copies share."""
        return list(self._model.buffers())

    def settle(self) -> None:
        """Take the buffers and weights as they are now for those that no client may change."""
        self._versions = {name: each._version for name, each in self._held().items()}
        # torch's own batch_norm writes running statistics without a new version.
        self._numbers = {name: each.clone() for name, each in self._model.named_buffers()}

    def _held(self) -> dict[str, Tensor]:
        return held(self._model)

    def check(self) -> None:
        """Refuse the work of a client that changed what the next client would see.

        Raises:
            ValueError: a buffer of this thread's copies, or a loaded weight, has changed since
                `settle`.
        """
        now = self._held()
        changed = [name for name, each in now.items() if each._version != self._versions[name]]
        changed += [name for name, each in self._numbers.items() if not _same(each, now[name])]
        for model in vars(self._threads).values():
            own = dict(model.named_buffers())
            for name in {**dict(self._model.named_buffers()), **own}:
                if own.get(name) is not now.get(name):  # it may have been none, and filled
                    changed.append(name)
        if changed:
            raise ValueError(
                "Expected buffers and loaded weights that training leaves alone, got another "
                f"{changed[0]}: other clients would see this client's data; replace its layer or "
                "freeze it."
            )

    def trained(self, model: nn.Module | None = None) -> dict[str, nn.Parameter]:
        """The trained parameters, by name, of the model or of a copy."""
        every = dict((model or self._model).named_parameters())
        return {name: every[name] for name in self._parts}

    def weights(self) -> dict[str, Tensor]:
        """The loaded weights of the trained parameters, by name."""
        return {name: parameter.detach() for name, parameter in self.trained().items()}

    def vector(self) -> Tensor:
        """The same as one vector, (d,)."""
        return torch.cat([weight.reshape(-1) for weight in self.weights().values()])

    def fill(self, model: nn.Module, types: Sequence[torch.dtype]) -> None:
        """Put the loaded weights and the buffers into another copy, in these types (`stored`)."""
        with torch.no_grad():
            for weight, loaded in zip(
                self.trained(model).values(), self.trained().values(), strict=True
            ):
                weight.copy_(loaded)
            for buffer, held in zip(model.buffers(), self.buffers(), strict=True):
                buffer.copy_(held)
        for tensor, kind in zip(stored(model), types, strict=True):
            tensor.data = tensor.data.to(kind)

    def own(self) -> nn.Module:
        """This thread's copy, with weights of its own."""
        if not hasattr(self._threads, "own"):
            self._threads.own = self._copy(self._model.buffers())
        return self._threads.own

    def shared(self) -> nn.Module:
        """This thread's copy, with the loaded weights."""
        if not hasattr(self._threads, "shared"):
            self._threads.shared = self.for_server()
        return self._threads.shared

    def for_server(self) -> nn.Module:
        """A copy of the model not owned by any worker thread."""
        return self._copy(itertools.chain(self._model.parameters(), self._model.buffers()))

    def apart(self) -> Copies:
        """The same of a copy of the model that shares nothing with it."""
        return Copies(copied(self._model), self._parts)

    def _copy(self, shared: Iterable[Tensor]) -> nn.Module:
        """A copy of the model that shares these tensors with it."""
        return copied(self._model, shared)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two buffers hold the same numbers, of which NaN is one."""
    return torch.equal(one, other) or bool(((one == other) | (one != one) & (other != other)).all())


def held(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's buffers and parameters by name."""
    return dict(itertools.chain(model.named_buffers(), model.named_parameters()))


def check_own(loss: Tensor, model: nn.Module) -> None:
    """Refuse a loss or a model that depends on a parameter which is not the model's own."""
    own = {id(parameter) for parameter in model.parameters()}
    left, known = [loss.grad_fn], set()
    while left:
        node: Any = left.pop()
        if node is None or node in known:
            continue
        known.add(node)
        left += [before for before, _ in node.next_functions]
        other = getattr(node, "variable", None)
        if other is not None and id(other) not in own:
            raise ValueError(
                f"Expected a loss of the output and the targets, got one that also depends on a "
                f"parameter of shape {tuple(other.shape)} which is not the trained model's: a copy "
                "of your model is trained, so a penalty on your model's weights would be one on "
                "constants. Give Server('SGD', options={'weight_decay': 0.01}) for weight decay, "
                "keep layers in nn.ModuleList, and call requires_grad_(False) on what is constant."
            )

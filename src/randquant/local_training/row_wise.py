"""Decide whether a model treats each example by itself, from the operations that it applies.

The model runs on zeros of an example's shape, and each function of torch that it calls is looked up
in a table, whose rule returns the dimension along which the examples are afterwards. The table has
no function that reads a number, such as the one behind `if x.sum() > 0`.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from randquant.local_training.data import ClientSet
from randquant.local_training.dry_run import work_mode
from randquant.local_training.models import (
    Features,
    called,
    copied,
    map_tensors,
    parameters_and_buffers,
    seeded,
    tensors,
)

COUNTS = (3, 12, 32)
"""Numbers of examples in the three passes, whose calls must not differ otherwise. The last is the
usual width of a pass over several clients. Larger ones would cost time; with a single example, the
examples' dimension would look like any other of size one."""

MAX_ATTRIBUTES = 10_000
"""Most attribute values of layers that are compared, one by one, before and after a call. A model
with more counts as one that stores something. Twice as many would double the time of a comparison,
which is a few milliseconds."""


class Obstacle(NamedTuple):
    """Reason why several clients are not computed together.

    Attributes:
        reason: a noun phrase that fits after "got", such as "a model with hooks".
        certain: updates would be wrong; otherwise a user may know that they are right.
    """

    reason: str
    certain: bool = False


class Reading(NamedTuple):
    """The operations that a model applies to its examples, and whether they keep them apart.

    Attributes:
        obstacle: the first operation that is not known to treat each example by itself; None if
            all are.
        operations: names of the functions of torch that were applied to examples, in order.
        numbers: that a gradient step keeps for each example, as a measure of its arithmetic;
            infinite where the model does not take zeros.
    """

    obstacle: Obstacle | None
    operations: tuple[str, ...]
    numbers: float


def read(model: nn.Module, still: Sequence[str], clients: ClientSet) -> Reading:
    """Read the operations of a model on examples of the shapes and types that all clients' have.

    Args:
        model: it stays as it is.
        still: names of the layers that are kept in evaluation mode.
        clients: all clients' data, of which only the shape of an example is used.
    """
    model = copied(model)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    work_mode(model, still)
    before, features = attribute_values(model), clients.example.features
    first, *others = (_run_watched(model, features, count) for count in COUNTS)
    obstacle = next((each.obstacle for each in (first, *others) if each.obstacle is not None), None)
    if obstacle is None and any(each.log != first.log for each in others):
        obstacle = Obstacle("operations that depend on how many examples there are")
    if obstacle is None and not are_the_same(before, attribute_values(model)):
        obstacle = Obstacle("a module that stores something during a call")
    return Reading(obstacle, tuple(first.names), others[-1].numbers)


def _run_watched(model: nn.Module, features: Features, count: int) -> _Watch:
    # A vectorised pass replaces the parameters by each client's weights, as is done here. Another
    # reference to a parameter, such as in a list, would keep the old weights.
    trainable = {name: each for name, each in model.named_parameters() if each.requires_grad}
    weights = {name: each.detach().clone().requires_grad_() for name, each in trainable.items()}
    watch = _Watch(model, count, weights.values(), trainable.values())
    saved = _Saved([*parameters_and_buffers(model), *weights.values()])
    # Zeros, because the reading is for all clients and may depend on no client's numbers.
    zeros = map_tensors(lambda each: each.new_zeros((count, *each.shape[1:])), features)
    for each in tensors(zeros):
        watch.add_examples(each)
    try:
        with seeded(0), saved, watch:
            output = called(model, zeros, weights)
    except Exception as error:  # of the user's own model, which was not made for zeros
        kind = type(error).__name__
        watch.obstacle = watch.obstacle or Obstacle(f"a model that zeros make raise {kind}")
        return watch
    watch.finish(output)
    # Numbers that are saved once for a whole pass count little in the largest one, which is used.
    watch.numbers = saved.count / count
    return watch


FUNCTIONS = (FunctionType, BuiltinFunctionType)
"""Types of what is called and has no attributes to look at; a loss may be an object that has."""


def attribute_values(model: nn.Module, loss: object = None) -> list[object]:
    """Return all attribute values of layers and a loss, but for parameters, buffers and layers.

    Containers and objects are opened to any depth, because a tensor stored in a vectorised pass
    would reach the next pass, of other clients. Variables that functions enclose are not seen.
    """
    layers = list(model.modules())
    seen, values = {id(layer) for layer in layers}, []
    left: list[object] = [loss]
    for layer in layers:
        for name, value in vars(layer).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                left += [name, value]
    while left and len(values) < MAX_ATTRIBUTES:
        value = left.pop()
        values.append(value)
        if id(value) in seen or isinstance(value, Tensor | type):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple | Set | deque):
            left += value
        elif isinstance(value, MethodType):
            left += [value.__self__]
        elif not isinstance(value, FUNCTIONS):
            left += [getattr(value, "__dict__", None)]
    # A new object equals no other: too many values count as changed.
    return values if len(values) < MAX_ATTRIBUTES else [object()]


def are_the_same(before: list[object], after: list[object]) -> bool:
    # By identity: comparing tensors has no single answer, and both lists keep their objects alive,
    # so that no new object can have an old one's identity.
    return len(before) == len(after) and all(map(operator.is_, before, after))


class _Saved(torch.autograd.graph.saved_tensors_hooks):
    """Counts the numbers that autograd saves for the backward pass, without the model's tensors."""

    def __init__(self, model_tensors: Sequence[Tensor]) -> None:
        self.count = 0
        known = {_memory(tensor) for tensor in model_tensors}

        def keep(tensor: Tensor) -> Tensor:
            if _memory(tensor) not in known:
                self.count += tensor.numel()
            return tensor

        super().__init__(keep, lambda tensor: tensor)


def _memory(tensor: Tensor) -> int:
    # A sparse tensor has no single address; no tensor has address zero.
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


class _Call(NamedTuple):
    """A call of a function; `axes` maps the id of each tensor of examples to their dimension."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]
    axes: dict[int, int]
    result: Any

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        if name in self.options:
            return self.options[name]
        return self.arguments[position] if len(self.arguments) > position else default

    def axis(self, value: Any) -> int | None:
        # None for constants and for values that are not tensors.
        return self.axes.get(id(value))

    @property
    def tensors(self) -> list[Tensor]:
        return list(_leaves((self.arguments, self.options), Tensor))

    @property
    def only(self) -> tuple[Tensor, int]:
        """First argument and its examples' dimension; no other argument may have examples.

        Raises:
            _UnknownError: another argument has examples, or the first has none.
        """
        first = self.argument(0, "input")
        rows = [each for each in self.tensors if self.axis(each) is not None]
        axis = self.axis(first)
        _require(len(rows) == 1)
        if axis is None:
            raise _UnknownError
        return first, axis


class _UnknownError(Exception):
    """This call of an operation is not known to treat each example by itself."""


class _MixedError(_UnknownError):
    """This call is known to mix examples."""


def _require(condition: object, error: type[_UnknownError] = _UnknownError) -> None:
    if not condition:
        raise error


def _leaves(value: Any, kind: type | tuple[type, ...]) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each, kind)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each, kind)


class _Watch(TorchFunctionMode):
    """Follows the examples through all functions of torch that are called.

    Args:
        model: its tensors are constants.
        count: number of examples.
        weights: tensors that the model is called with instead of its trained parameters.
        replaced: those parameters, which no operation may use any more.
    """

    def __init__(
        self, model: nn.Module, count: int, weights: Iterable[Tensor], replaced: Iterable[Tensor]
    ) -> None:
        super().__init__()
        self.obstacle: Obstacle | None = None
        self.names: list[str] = []
        self.log: list[str] = []
        self.numbers = math.inf
        self._count = count
        # References keep the tensors alive: a new one must not get the id of one that is gone.
        self._tensors: dict[int, Tensor] = {}
        self._axes: dict[int, int] = {}
        self._replaced = {id(each): each for each in replaced}
        attributes = tuple(vars(layer) for layer in model.modules())
        for each in (*weights, *parameters_and_buffers(model), *_leaves(attributes, Tensor)):
            if id(each) not in self._replaced:
                self._tensors[id(each)] = each
            if each.layout is not torch.strided:
                self.obstacle = Obstacle("a parameter or buffer that is not dense")
        self._inputs = {_memory(each) for each in self._tensors.values()}

    def add_examples(self, tensor: Tensor) -> None:
        self._tensors[id(tensor)], self._axes[id(tensor)] = tensor, 0
        self._inputs.add(_memory(tensor))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if self.obstacle is not None or func in FACTS:
            return func(*args, **options)
        # Writing in place raises a tensor's version.
        inputs = list(_leaves((args, options), Tensor))
        versions = [each._version for each in inputs]
        result = func(*args, **options)
        if func not in NAMES:
            self.obstacle = Obstacle(f"{_name(func)}, which is not in the table of operations")
        elif any(id(each) in self._replaced for each in inputs):
            reason = f"{_name(func)} of a parameter that something other than its layer holds"
            self.obstacle = Obstacle(reason, certain=True)
        elif any(id(each) not in self._tensors for each in inputs):
            self.obstacle = Obstacle(f"{_name(func)} of a tensor of unknown origin")
        elif any(
            each._version != before
            and (id(each) not in self._axes or _memory(each) in self._inputs)
            for each, before in zip(inputs, versions, strict=True)
        ):
            # The next pass, of other clients, would see what is written to examples or the model.
            self.obstacle = Obstacle(f"{_name(func)}, which overwrites what is needed again")
        else:
            renamed = {ALIASES.get(str(name), str(name)): each for name, each in options.items()}
            self._follow(NAMES[func], _Call(args, renamed, self._axes, result))
        return result

    def _follow(self, name: str, call: _Call) -> None:
        results = list(_leaves(call.result, Tensor))
        for each in results:
            self._tensors[id(each)] = each
        described = f"{name} {_plain(call.arguments)} {_plain(call.options)}"
        if all(call.axis(each) is None for each in call.tensors):
            self.log.append(described)
            return
        self.names.append(name)
        try:
            axes = RULES[name](call)
            axes = axes if isinstance(axes, tuple) else (axes,) * len(results)
            for each, axis in zip(results, axes, strict=True):
                _require(each.shape[axis] == self._count)
        # A rule that fails on a call does not know its form, so that the call counts as unknown.
        except (_UnknownError, TypeError, ValueError, LookupError, AttributeError) as error:
            mixed = isinstance(error, _MixedError)
            use = "over the examples of a batch" if mixed else "in a form that is not in the table"
            self.obstacle = Obstacle(f"{name} {use}", certain=mixed)
            return
        for each, axis in zip(results, axes, strict=True):
            self._axes[id(each)] = axis
            # Other dimensions must not depend on the number of examples, as an expansion's may.
            self.log.append(str((*each.shape[:axis], *each.shape[axis + 1 :])))
        if name not in SIZED:
            self.log.append(described)

    def finish(self, output: Any) -> None:
        """Check that the output has the examples along its first dimension, as the loss expects."""
        if self.obstacle is None and self._axes.get(id(output)) != 0:
            self.obstacle = Obstacle("an output whose first dimension is not the examples'")
        if self.obstacle is None and _has_own_gradient(output):
            self.obstacle = Obstacle("a torch.autograd.Function, which may do anything")


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))


def _plain(arguments: Any) -> str:
    # Without devices and functions, which do not depend on the number of examples.
    kinds = (int, float, str, slice, torch.dtype, torch.memory_format)
    return str(list(_leaves(arguments, kinds)))


def _has_own_gradient(output: Tensor) -> bool:
    # Its backward pass may mix examples even where its forward pass does not.
    left, known = [output.grad_fn], set()
    while left:
        node: Any = left.pop()
        if node is not None and node not in known:
            if isinstance(node, BackwardCFunction):
                return True
            known.add(node)
            left += [before for before, _ in node.next_functions]
    return False


# Rules: each returns the examples' dimension in a call's results, or raises `_UnknownError`.


def _elementwise(call: _Call) -> int:
    rows = [each for each in call.tensors if call.axis(each) is not None]
    # Shapes are aligned at their last dimensions, so the examples' is counted from there.
    places = {each.ndim - call.axes[id(each)] for each in rows}
    _require(len(places) == 1)
    (place,) = places
    # A constant with a number for each example would treat examples by their places in the batch.
    for each in call.tensors:
        constant = call.axis(each) is None
        _require(not constant or each.ndim < place or each.shape[each.ndim - place] == 1)
    return call.result.ndim - place


def _dropout(call: _Call) -> int:
    # In training, the mask of an example depends on how many examples come before it.
    _require(call.argument(1, "p", 0.5) == 0 or not call.argument(2, "training", True))
    return call.only[1]


def _over(position: int, default: int | None = None) -> Callable[[_Call], int]:
    """Return the rule of functions that reduce or scale along dimensions.

    Args:
        position: of the argument `dim`.
        default: of `dim`; None for all dimensions, which mixes examples.
    """

    def rule(call: _Call) -> int:
        rows, axis = call.only
        dims = call.argument(position, "dim", default)
        dims = [dims] if isinstance(dims, int) else dims
        _require(isinstance(dims, list | tuple) and dims)
        _require(all(type(each) is int for each in dims))
        places = {each % rows.ndim for each in dims}
        _require(axis not in places, _MixedError)
        first = next(_leaves(call.result, Tensor))
        return axis if first.ndim == rows.ndim else axis - sum(each < axis for each in places)

    return rule


def _trailing(call: _Call) -> int:
    # The second argument is the shape of the last dimensions, which are normalised together.
    rows, axis = call.only
    _require(len(call.argument(1, "normalized_shape")) < rows.ndim - axis)
    return axis


def _padded(call: _Call) -> int:
    rows, axis = call.only
    # `pad` has a pair for each dimension, the last one first.
    _require(len(call.argument(1, "pad")) // 2 < rows.ndim - axis)
    _require(call.argument(2, "mode", "constant") == "constant")
    return axis


def _batched(*dimensions: int) -> Callable[[_Call], int]:
    """Return the rule of layers that take (examples, channels, ...), or one example alone.

    Args:
        dimensions: numbers of dimensions that mean a batch of examples.
    """

    def rule(call: _Call) -> int:
        rows, axis = call.only
        _require(axis == 0 and rows.ndim in dimensions)
        return 0

    return rule


def _batch_norm(call: _Call) -> int:
    training, mean = call.argument(5, "training", False), call.argument(1, "running_mean")
    # Otherwise it normalises by the batch's own mean and variance.
    _require(not training and mean is not None, _MixedError)
    return _batched(2, 3, 4, 5)(call)


def _instance_norm(call: _Call) -> int:
    measured = call.argument(5, "use_input_stats", True)  # of each example, or else kept
    _require(call.argument(1, "running_mean") is None or not measured)
    return _batched(3, 4, 5)(call)


def _embedding(call: _Call) -> int:
    _require(call.argument(3, "max_norm") is None)  # it would overwrite the weight
    _require(not call.argument(5, "scale_grad_by_freq", False))  # it counts all examples' indices
    _require(not call.argument(6, "sparse", False))
    return call.only[1]


def _linear(call: _Call) -> int:
    # The last dimension is multiplied by the weights.
    rows, axis = call.only
    _require(axis <= rows.ndim - 2)
    return axis


def _product(call: _Call) -> int:
    left, right = call.tensors
    one, other = call.axis(left), call.axis(right)
    if other is None:
        _require(right.ndim <= 2 and one is not None and one <= left.ndim - 2)
        return one  # type: ignore[return-value]
    # The last two dimensions are multiplied; the dimensions before them are a batch.
    _require(other <= right.ndim - 3)
    _require(left.ndim <= 2 if one is None else (one, left.ndim) == (other, right.ndim))
    return other


def _attention(call: _Call) -> int:
    first, *others = (call.axis(each) for each in call.arguments[:3])
    if first is None or others != [first, first]:
        raise _UnknownError
    rows, mask = call.arguments[0], call.argument(3, "attn_mask")
    _require(first <= rows.ndim - 3 and call.argument(4, "dropout_p", 0.0) == 0)
    _require(len({each.ndim for each in call.arguments[:3]}) == 1)
    # A mask of two dimensions is common to all examples.
    _require(mask is None or (call.axis(mask) is None and mask.ndim <= 2))
    return first


def _heads(call: _Call) -> tuple[int, ...]:
    # It takes (sequence, examples, features); layers with `batch_first` transpose before the call.
    rows = [each for each in call.tensors if call.axis(each) is not None]
    first = call.arguments[:3]
    _require({id(each) for each in rows} == {id(each) for each in first})
    _require(all(each.ndim == 3 and call.axis(each) == 1 for each in first))
    _require(call.argument(10, "dropout_p") == 0 or not call.argument(13, "training", True))
    _require(call.argument(7, "bias_k") is None and call.argument(14, "key_padding_mask") is None)
    mask = call.argument(16, "attn_mask")
    _require(mask is None or mask.ndim == 2)
    averaged = call.argument(15, "need_weights", True)
    return (1, 0) if averaged else (1,)


def _joined(call: _Call) -> int:
    parts, dim = call.argument(0, "tensors"), call.argument(1, "dim", 0)
    axes = {call.axis(each) for each in parts}
    _require(len(axes) == 1 and type(dim) is int)
    (axis,) = axes
    _require(axis is not None and len({each.ndim for each in parts}) == 1)
    place = dim % call.result.ndim
    # stack adds a dimension, which moves the examples' on if it comes before; cat along theirs
    # would make one batch of two.
    if call.result.ndim > parts[0].ndim:
        return axis + (place <= axis)  # type: ignore[operator]
    _require(place != axis)
    return axis  # type: ignore[return-value]


def _reshaped(call: _Call) -> int:
    # Numbers keep their order: a dimension of the examples' size is theirs if as many numbers are
    # before it as were before.
    rows, axis = call.only
    _require(not any(_leaves((call.arguments, call.options), torch.dtype)))
    before, count = math.prod(rows.shape[:axis]), rows.shape[axis]
    after = call.result.shape
    for place in range(len(after)):
        if after[place] == count and math.prod(after[:place]) == before:
            return place
    raise _UnknownError


def _squeezed(call: _Call) -> int:
    _over(1)(call)  # without `dim`, a batch of one example would lose the examples' dimension
    return _reshaped(call)


def _expanded(call: _Call) -> int:
    # New dimensions come before the old ones.
    rows, axis = call.only
    return axis + call.result.ndim - rows.ndim


def _transposed(call: _Call) -> int:
    rows, axis = call.only
    one, other = (call.argument(k, f"dim{k - 1}") % rows.ndim for k in (1, 2))
    return {one: other, other: one}.get(axis, axis)


def _permuted(call: _Call) -> int:
    rows, axis = call.only
    dims = call.argument(1, "dims")
    dims = call.arguments[1:] if isinstance(dims, int) else dims
    return [each % rows.ndim for each in dims].index(axis)


def _indexed(call: _Call) -> int:
    rows, axis = call.only
    index = call.arguments[1]
    items = index if isinstance(index, tuple) else (index,)
    counted = sum(item is not None and item is not Ellipsis for item in items)
    rest = [slice(None)] * (rows.ndim - counted)
    if Ellipsis not in [item for item in items if isinstance(item, type(Ellipsis))]:
        items = (*items, Ellipsis)
    old = new = 0
    for item in (one for each in items for one in (rest if each is Ellipsis else [each])):
        # An index tensor could exchange examples, or leave some out.
        _require(item is None or type(item) in (int, slice))
        if item is not None and old == axis:
            _require(item == slice(None))
            return new
        old += item is not None
        new += type(item) is not int
    raise _UnknownError


def _einsum(call: _Call) -> int:
    formula, *operands = call.arguments
    _require(isinstance(formula, str) and "->" in formula and "." not in formula)
    inputs, output = formula.replace(" ", "").split("->")
    letters = set()
    for term, each in zip(inputs.split(","), operands, strict=True):
        axis = call.axis(each)
        if axis is not None:
            _require(term.count(term[axis]) == 1)
            letters.add(term[axis])
    _require(len(letters) == 1)
    (letter,) = letters
    constants = [t for t, each in zip(inputs.split(","), operands, strict=True)
                 if call.axis(each) is None]  # fmt: skip
    # The examples' letter may be in no constant: that would have other numbers for each place.
    _require(letter in output and not any(letter in term for term in constants))
    return output.index(letter)


def _constant(call: _Call) -> int:
    raise _UnknownError  # a function that makes constants, called with examples


ELEMENTWISE_NAMES = (
    "abs", "add", "bool", "celu", "clamp", "clamp_max", "clamp_min", "clip", "clone", "contiguous",
    "cos", "detach", "div", "elu", "eq", "erf", "exp", "expm1", "float", "ge", "gelu", "gt",
    "hardsigmoid", "hardswish", "hardtanh", "le", "leaky_relu", "log", "log1p", "logical_and",
    "logical_not", "logical_or", "logsigmoid", "long", "lt", "masked_fill", "maximum", "minimum",
    "mish", "mul", "ne", "neg", "ones_like", "pow", "reciprocal", "relu", "relu6", "rsqrt", "selu",
    "sigmoid", "sign", "silu", "sin", "softplus", "softsign", "sqrt", "square", "sub", "tanh",
    "tanhshrink", "to", "where", "zeros_like", "__and__", "__eq__", "__invert__", "__or__",
    "__pow__", "__rsub__", "__rdiv__", "__rpow__",
    "add_", "div_", "mul_", "relu_", "sigmoid_", "sub_", "tanh_",
)  # fmt: skip
"""Functions that compute each number from the numbers at the same place."""

RULES: dict[str, Callable[[_Call], int | tuple[int, ...]]] = {
    **dict.fromkeys(ELEMENTWISE_NAMES, _elementwise),
    **dict.fromkeys(("softmax", "log_softmax", "softmin", "mean", "sum", "amax", "amin", "max",
                     "min", "logsumexp", "var", "std", "cumsum", "argmax", "prod"), _over(1)),
    "glu": _over(1, -1), "unbind": _over(1, 0), "normalize": _over(2, 1),
    **dict.fromkeys(("chunk", "split"), _over(2, 0)),
    **dict.fromkeys(("layer_norm", "rms_norm"), _trailing),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), _dropout),
    **{f"conv{k}d": _batched(k + 2) for k in (1, 2, 3)},
    **{f"conv_transpose{k}d": _batched(k + 2) for k in (1, 2, 3)},
    **{f"{kind}_pool{k}d": _batched(k + 2) for k in (1, 2, 3)
       for kind in ("max", "avg", "adaptive_avg", "adaptive_max")},
    "interpolate": _batched(3, 4, 5), "pixel_shuffle": _batched(4),
    "group_norm": _batched(2, 3, 4, 5), "prelu": _batched(2, 3, 4, 5),
    "batch_norm": _batch_norm, "instance_norm": _instance_norm, "pad": _padded,
    "embedding": _embedding, "linear": _linear,
    **dict.fromkeys(("matmul", "bmm"), _product),
    "scaled_dot_product_attention": _attention, "multi_head_attention_forward": _heads,
    **dict.fromkeys(("cat", "stack"), _joined), "einsum": _einsum,
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "unsqueeze"), _reshaped),
    "squeeze": _squeezed, "expand": _expanded, "transpose": _transposed, "permute": _permuted,
    "__getitem__": _indexed,
    **dict.fromkeys(("arange", "eye", "full", "linspace", "ones", "tensor", "tril", "triu",
                     "zeros"), _constant),
}  # fmt: skip
"""Rule of each function of torch by its name."""


def _functions(names: Any) -> dict[Any, str]:
    owners = (torch, Tensor, nn.functional)
    return {getattr(each, name): name for name in names for each in owners if hasattr(each, name)}


NAMES = {
    function: name
    for function, name in _functions(RULES).items()
    # These have another order of arguments than those of torch.nn.functional.
    if function not in (torch.batch_norm, torch.instance_norm, torch.embedding)
}
"""Name in the table of each function of torch."""

ALIASES = {"axis": "dim", "keepdims": "keepdim"}
"""NumPy's names of arguments, which torch takes as well."""

SIZED = frozenset({"view", "reshape", "unflatten", "expand"})
"""Functions with the number of examples among their arguments: only their results' shapes count."""

FACTS = frozenset(
    {
        *_functions(("size", "dim", "is_floating_point", "is_complex", "__len__")),
        *(getattr(Tensor, name).__get__ for name in (
            "shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_nested", "is_cuda",
            "is_cpu", "is_sparse", "is_meta", "is_quantized",
        )),
    }
)  # fmt: skip
"""Functions that read properties of a tensor, but none of its numbers."""

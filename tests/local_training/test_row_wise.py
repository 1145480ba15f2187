"""Which models' clients are computed together, and that each then has the update it has alone."""

import random
import subprocess
import sys
from collections import deque
from dataclasses import replace
from functools import partial
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import torch
from data_forms import Pairs
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from randquant.channels import Key
from randquant.local_training import KNOWN_ATTENTION, Learner, Work, dry_run, make_problem
from randquant.local_training.data import client_set
from randquant.local_training.row_wise import RULES, _constant, read

KEY = Key.from_seed(3)
SIZES = (6, 1, 9)
INPUTS = 6


class Between(nn.Module):
    """A function, or a layer, between two linear layers: it takes examples of a shape."""

    def __init__(self, function, *shape):
        super().__init__()
        self.shape, self.function = shape, function
        self.first, self.last = nn.Linear(INPUTS, int(np.prod(shape))), nn.LazyLinear(3)

    def forward(self, x):
        x = self.first(x).reshape(-1, *self.shape)
        return self.last(self.function(x).reshape(x.shape[0], -1))


class Own(nn.Module):
    def __init__(self, forward, **layers):
        super().__init__()
        self.run = forward
        for name, layer in layers.items():
            if isinstance(layer, nn.Module | nn.Parameter):
                setattr(self, name, layer)
            else:
                self.register_buffer(name, layer)

    def forward(self, *x, **named):
        return self.run(self, *x, **named)


def positive(function):
    return lambda x: function(x.sigmoid() + 0.5)


def of_torch(name):
    owner = next(each for each in (torch, nn.functional, torch.Tensor) if hasattr(each, name))
    return positive(getattr(owner, name))


ALONE = (
    "abs", "celu", "clone", "cos", "detach", "elu", "erf", "exp", "expm1", "gelu", "hardsigmoid",
    "hardswish", "hardtanh", "leaky_relu", "log", "log1p", "logsigmoid", "mish", "neg",
    "reciprocal", "relu", "relu6", "rsqrt", "selu", "sigmoid", "sign", "silu", "sin", "softplus",
    "softsign", "sqrt", "square", "tanh", "tanhshrink",
)  # fmt: skip
"""Functions of one tensor."""
PAIRS = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
REDUCED = ("mean", "sum", "amax", "amin", "logsumexp", "var", "std", "prod")


def attention(x):
    return functional.scaled_dot_product_attention(x, 2 * x, x + 1)


def in_place(x):
    y = x + 1
    y += x
    y -= 0.5
    y *= 2
    y /= 3
    y = y.cos().tanh_().cos().relu_().cos()
    return y.sigmoid_()


def pair(name, kind, x):
    others = {"two": x.cos() + 2, "rows": x[:, :1].cos() + 2, "constants": torch.full((4,), 2.0)}
    return getattr(torch, name)(x.exp(), others[kind])


def compared(name, x):
    return x * getattr(torch, name)(x, x.cos()).float()


def reduced(name, x):
    return getattr(torch, name)(x.cos() + 2, -1)


def with_constants(self, x):
    return self.out(x * self.factor)


def twice(self, x):
    return self.out(self.middle(self.middle(x).relu()).relu())


def weights_of_length_one(self, x):
    squares = (self.weight * self.weight).sum(1, keepdim=True)
    return functional.linear(x, self.weight / squares.sqrt())


FUNCTIONS = {
    **{name: (of_torch(name), 4) for name in ALONE},
    **{f"{name} of {kind}": (partial(pair, name, kind), 2, 4)
       for name in PAIRS for kind in ("two", "rows", "constants")},
    **{name: (partial(compared, name), 4) for name in COMPARED},
    **{f"{name} over the last": (partial(reduced, name), 2, 4) for name in REDUCED},
    "mean over several": (lambda x: x.mean((1, -1), keepdim=True) * x, 2, 4),
    "numbers and rows": (lambda x: 2 - x / 3 + 1 / (x.exp() + 1) + 2**x, 4),
    "numpy's names": (lambda x: x.sum(axis=1), 2, 4),
    "max": (lambda x: x.max(1).values + x.min(1)[0], 3, 4),
    "argmax": (lambda x: x[:, 0] + x.argmax(1).to(torch.float32) + x[:, 1].long(), 3, 4),
    "cumsum": (lambda x: x.cumsum(1), 3, 2),
    "softmax": (lambda x: x.softmax(1) + x.log_softmax(-1) + functional.softmin(x, 1), 3, 2),
    "glu": (nn.GLU(), 4),
    "normalize": (functional.normalize, 4),
    "logic": (lambda x: x * torch.logical_and(x > 0, torch.logical_or(x < 1, x > 2)), 4),
    "operators": (lambda x: x**2 * ((x > 0) & (x < 1) | (x == 2) | ~(x > -1)), 4),
    "no": (lambda x: x * torch.logical_not(x.sign().bool()) + x, 4),
    "where": (lambda x: torch.where(x > 0, x, 0.1 * x) + torch.where(x > 0, 1.0, torch.ones(4)), 4),
    "masked": (lambda x: x.masked_fill(torch.ones(3, 3).triu(1).bool(), -9.0).softmax(-1), 3, 3),
    "masked below": (lambda x: x * torch.tril(torch.eye(3)) + torch.zeros(3), 3, 3),
    "clamp": (lambda x: x.clamp(-0.5, 0.5) + x.clip(min=0) + x.clamp_min(0) + x.clamp_max(0), 4),
    "like": (lambda x: x + torch.zeros_like(x) + torch.ones_like(x), 4),
    "contiguous": (lambda x: x.transpose(1, 2).contiguous(), 2, 4),
    "constants": (lambda x: x * torch.arange(4) + torch.linspace(0, 1, 4) + torch.tensor(2.0), 4),
    "in place": (in_place, 4),
    "activation in place": (nn.ReLU(inplace=True), 4),
    "prelu": (nn.PReLU(2), 2, 3),
    "dropout of nothing": (nn.Sequential(nn.Dropout(0.0), nn.Dropout1d(0.0)), 2, 3),
    "dropout of maps": (nn.Sequential(nn.Dropout2d(0.0)), 2, 3, 3),
    "dropout of volumes": (nn.Sequential(nn.Dropout3d(0.0)), 2, 3, 3, 3),
    "layer norm": (nn.LayerNorm(4), 3, 4),
    "rms norm": (nn.RMSNorm((3, 4)), 3, 4),
    "group norm": (nn.GroupNorm(2, 4), 4, 3),
    "instance norm": (nn.InstanceNorm1d(2, affine=True), 2, 4),
    "convolution of a line": (nn.Conv1d(2, 3, 2, padding=1), 2, 5),
    "convolution": (nn.Conv2d(2, 4, 2, groups=2, dilation=2, stride=2), 2, 5, 5),
    "convolution of a volume": (nn.Conv3d(1, 2, 2), 1, 3, 3, 3),
    "transposed": (nn.ConvTranspose2d(2, 3, 2), 2, 3, 3),
    "transposed line": (nn.ConvTranspose1d(2, 3, 2), 2, 3),
    "transposed volume": (nn.ConvTranspose3d(1, 2, 2), 1, 2, 2, 2),
    **{f"{kind}, {k}": (getattr(nn, f"{kind}Pool{k}d")(2), 2, *[5] * k)
       for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax") for k in (1, 2, 3)},
    "ceiling": (nn.MaxPool2d(2, ceil_mode=True), 2, 5, 5),
    "padded": (nn.ZeroPad2d(1), 2, 3, 3),
    "upsampled": (nn.Upsample(scale_factor=2), 2, 3, 3),
    "shuffled": (nn.PixelShuffle(2), 4, 2, 2),
    "matrices": (lambda x: x @ x.transpose(1, 2) + torch.bmm(x, x.permute(0, 2, 1)), 3, 4),
    "constant matrices": (lambda x: torch.ones(2, 3) @ x @ torch.ones(4, 2), 3, 4),
    "einsum": (lambda x: torch.einsum("nij,njk->nik", x, x), 3, 3),
    "einsum with constants": (lambda x: torch.einsum("nij,jk->nik", x, torch.ones(3, 3)), 3, 3),
    "attention by hand": (attention, 2, 4, 3),
    "joined": (lambda x: torch.cat([x, x], 1) + torch.stack([x, x], dim=2).flatten(1, 2), 3, 2),
    "stacked first": (lambda x: torch.stack([x, x.cos()]).transpose(0, 1), 3),
    "parts": (lambda x: torch.cat([*x.chunk(2, 1), *x.split(2, dim=1)], dim=1), 4),
    "unbound": (lambda x: sum(x.unbind(1)), 3, 2),
    "shapes": (lambda x: x.view(x.size(0), -1).unflatten(1, (2, 2)).unsqueeze(1).squeeze(1), 4),
    "length": (lambda x: x.view(len(x), 1, -1).expand(-1, 3, -1), 4),
    "indices": (lambda x: x[:, None, 1:] + x[..., -1:][:, None] + x[:, 0].reshape(-1, 1, 1), 4),
}  # fmt: skip


class Repeated(nn.Module):
    """A transformer's beginning, of words and their places."""

    def __init__(self):
        super().__init__()
        self.word, self.place = nn.Embedding(7, 4, padding_idx=0), nn.Embedding(5, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        x = self.word(x) + self.place(torch.arange(x.size(1)))
        return self.out(self.layer(x)[:, -1])


def kept_still():
    return nn.Sequential(nn.Linear(INPUTS, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def sequence_first(self, x):
    x = x[:, None] * self.weight.reshape(-1, 1)
    x = x.transpose(0, 1)
    return self.out(self.attention(x, x, x, need_weights=False)[0].mean(0))


MODELS = {
    "transformer": (Repeated, "words", {}),
    "still": (kept_still, "numbers", {"buffers": "frozen"}),
    "sequence first": (
        lambda: Own(
            sequence_first, weight=nn.Parameter(torch.ones(3)),
            attention=nn.MultiheadAttention(INPUTS, 2), out=nn.Linear(INPUTS, 3),
        ), "numbers", {},
    ),
    "weights of length one": (
        lambda: Own(weights_of_length_one, weight=nn.Parameter(torch.eye(INPUTS)[:3])),
        "numbers", {},
    ),
    "used twice": (
        lambda: Own(twice, middle=nn.Linear(INPUTS, INPUTS), out=nn.Linear(INPUTS, 3)),
        "numbers", {},
    ),
    "constants": (
        lambda: Own(with_constants, out=nn.Linear(INPUTS, 3), factor=torch.linspace(0, 1, INPUTS)),
        "numbers", {},
    ),
}  # fmt: skip


def clients(kind="numbers"):
    rng = np.random.default_rng(0)
    made = {
        "numbers": lambda n: rng.normal(size=(n, INPUTS)).astype(np.float32),
        "words": lambda n: rng.integers(0, 7, (n, 5)),
        "lines": lambda n: rng.normal(size=(n, 2, INPUTS)).astype(np.float32),
    }[kind]
    return [(made(n), rng.integers(0, 3, n)) for n in SIZES]


def a_problem(build, kind="numbers", **options):
    torch.manual_seed(0)
    model, data = build(), clients(kind)
    with torch.no_grad():
        model(torch.from_numpy(data[0][0]))  # the size of a lazy layer
    return make_problem(model, data, **options)


def reading(problem):
    return read(problem.model, problem.dry_run.still, problem.clients)


def check_alike(problem):
    """Each client has the update together that it has alone."""
    steps = (Work(batch=4, together=True), Work(epochs=2, learning_rate="auto", together=True))
    for work in steps:
        alone = Work(work.batch, work.epochs, work.learning_rate, together=False)
        with KNOWN_ATTENTION():
            one, other = (Learner(problem, each).updates([0, 1, 2], KEY) for each in (work, alone))
        scale = np.abs(other[0]).max()
        assert scale > 0
        assert np.abs(one[0] - other[0]).max() < (1e-5 if work is steps[0] else 1e-3) * scale
        assert one[1] == pytest.approx(other[1], rel=1e-5)


@pytest.mark.slow(after=8)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_are_in_the_table_are_computed_together_as_alone(name):
    problem = a_problem(lambda: Between(*FUNCTIONS[name]))
    assert reading(problem).obstacle is None
    check_alike(problem)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_known_operations_are_computed_together_as_alone(name):
    build, kind, options = MODELS[name]
    problem = a_problem(build, kind, **options)
    learner = Learner(problem)
    assert (learner.obstacle, learner.together) == (None, True)
    check_alike(problem)


def test_each_function_of_the_table_has_a_case():
    models = [(Between(*case), "numbers") for case in FUNCTIONS.values()]
    models += [(build(), kind) for build, kind, _ in MODELS.values()]
    data, seen = {kind: client_set(clients(kind)) for kind in ("numbers", "words")}, set()
    for model, kind in models:
        with torch.no_grad():
            model(torch.from_numpy(clients(kind)[0][0]))
        still = [name for name, each in model.named_modules() if isinstance(each, nn.BatchNorm1d)]
        seen |= set(read(model, still, data[kind]).operations)
    assert seen == {name for name, rule in RULES.items() if rule is not _constant}


def rows_of(function):
    """A model of a function and a linear layer before and after it."""
    return lambda: Own(lambda self, x: self.out(function(self.first(x))),
                       first=nn.Linear(INPUTS, 4), out=nn.Linear(4, 3))  # fmt: skip


def hooked(hook):
    model = nn.Sequential(nn.Linear(INPUTS, 4), nn.Tanh(), nn.Linear(4, 3))
    hook(model)
    return model


class Doubled(torch.autograd.Function):
    """Its gradient is one over all examples, which no forward pass shows."""

    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, slope):
        return slope.mean(0, keepdim=True).expand_as(slope)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.out = 10**6, nn.Linear(INPUTS, 3)

    def forward(self, x):
        self.calls += 1
        return self.out(x)


class Keeping(nn.Linear):
    def forward(self, x):
        self.last = super().forward(x)
        return self.last


def whole(layer, *inputs):
    """A layer that takes examples without a dimension of channels for one example."""
    return lambda: nn.Sequential(nn.Linear(INPUTS, 4), layer, nn.Flatten(1), nn.Linear(*inputs, 3))


KNOWN_TO_MIX = {
    "centred": rows_of(lambda x: x - x.mean(0)),
    "counted from the end": rows_of(lambda x: x - x.mean(-2)),
    "softmax over examples": rows_of(lambda x: x.softmax(0)),
    "over all": rows_of(lambda x: x - x.mean((0, 1))),
    "the largest": rows_of(lambda x: x / x.amax(0)),
    "added up": rows_of(lambda x: x.cumsum(0)),
    "statistics of the batch": lambda: nn.Sequential(
        nn.Linear(INPUTS, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)
    ),
    "a layer": lambda: nn.Sequential(nn.Linear(INPUTS, 3), nn.Softmax(dim=0)),
}
UNKNOWN = {
    "mean of everything": rows_of(lambda x: x - x.mean()),
    "pairs": rows_of(lambda x: (x.mean(1) - x.mean(1, keepdim=True)).mean(1, keepdim=True) + x),
    "distances": rows_of(lambda x: x + (x @ x.T).mean(1, keepdim=True)),
    "kernel": rows_of(lambda x: x + torch.cdist(x, x).mean(1, keepdim=True)),
    "by how many": rows_of(lambda x: x / len(x)),
    "repeated as often": rows_of(lambda x: x + x[:, :1].expand(-1, len(x)).sum(1, keepdim=True)),
    "who is first": rows_of(lambda x: x - x[:1]),
    "one of them": rows_of(lambda x: x - x[0]),
    "the other way round": rows_of(lambda x: x + x.flip(0)),
    "rolled": rows_of(lambda x: x + x.roll(1, 0)),
    "sorted": rows_of(lambda x: x.sort(0).values),
    "flattened": rows_of(lambda x: x.flatten().reshape(4, -1).T.contiguous()),
    "viewed": rows_of(lambda x: x.reshape(4, -1).t().reshape(-1, 4)),
    "without dimensions of one": rows_of(lambda x: x.squeeze() + 0),
    "chosen by number": lambda: Own(
        lambda self, x: self.one(x) if x.sum() > 0 else self.two(x),
        one=nn.Linear(INPUTS, 3), two=nn.Linear(INPUTS, 3),
    ),
    "a number of them": rows_of(lambda x: x * float(x.detach().mean())),
    "by NumPy": rows_of(lambda x: x + torch.from_numpy(x.detach().numpy().mean(0))),
    "one norm": whole(nn.InstanceNorm1d(6), 4),
    "one pool": whole(nn.AvgPool1d(2), 2),
    "one sequence": lambda: Own(
        lambda self, x: self.attention(x, x, x)[0],
        attention=nn.MultiheadAttention(INPUTS, 1, batch_first=True),
    ),
    "a batch for a sequence": lambda: Own(
        lambda self, x: self.attention(x[:, None], x[:, None], x[:, None])[0].mean(1),
        attention=nn.MultiheadAttention(INPUTS, 1),
    ),
    "a gradient of its own": rows_of(Doubled.apply),
    "computed twice": rows_of(lambda x: checkpoint(torch.tanh, x, use_reentrant=False)),
    "a counter": Counting,
    "what it kept": lambda: Keeping(INPUTS, 3),
    "spectral norm": lambda: parametrizations.weight_norm(nn.Linear(INPUTS, 3)),
    # Its gradient of a row is over how often all examples of a batch have it.
    "rows by frequency": lambda: Own(
        lambda self, x: self.last(self.words((x > 0).long()).mean(1)),
        words=nn.Embedding(2, 4, scale_grad_by_freq=True), last=nn.Linear(4, 3),
    ),
    "recurrent, state by state": lambda: Own(
        lambda self, x: self.cell(x), cell=nn.GRUCell(INPUTS, 3)
    ),
}  # fmt: skip
SURE = {
    "hook": lambda: hooked(lambda model: model[1].register_forward_hook(lambda *args: None)),
    "hook before": lambda: hooked(
        lambda model: model[0].register_forward_pre_hook(lambda *args: None)
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(INPUTS, 4), nn.AlphaDropout(), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("name", [*KNOWN_TO_MIX, *UNKNOWN, *SURE])
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_known_to_treat_each_example_by_itself_is_computed_alone(name, monkeypatch):
    build = {**KNOWN_TO_MIX, **UNKNOWN, **SURE}[name]
    monkeypatch.setattr(dry_run, "_check_mean", lambda *losses: None)  # some are refused by it
    monkeypatch.setattr(dry_run, "_check_repeats", lambda *losses: None)
    problem = a_problem(build)
    learner = Learner(problem)
    assert not learner.together
    assert learner.obstacle.certain == (name not in UNKNOWN)
    assert learner.updates([0, 2], KEY)[0].any()
    if name not in UNKNOWN:
        with pytest.raises(ValueError, match=r"together=True, got .*: leave together out"):
            Learner(problem, Work(together=True))


def test_overridden_functions_are_looked_at_not_the_names_of_layers():
    """A class, an instance and a parametrisation that do something else than their layer."""

    class Mixing(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    instance = nn.Linear(INPUTS, 3)
    instance.forward = lambda x: functional.linear(x - x.mean(0), instance.weight, instance.bias)
    halved = nn.Linear(INPUTS, 3)
    halved.forward = lambda x: functional.linear(x, halved.weight, halved.bias) / 2
    for build in (lambda: Mixing(INPUTS, 3), lambda: nn.Sequential(Mixing(INPUTS, 3))):
        assert reading(a_problem(build)).obstacle.certain
    # A copied model would compute with the weights of the first.
    for model in (instance, halved):
        with pytest.raises(ValueError, match="depend"):
            a_problem(lambda model=model: model)


def test_lines_are_examples_of_one_linear_layer_only():
    problem = a_problem(lambda: nn.Sequential(nn.Flatten(), nn.Linear(2 * INPUTS, 3)), "lines")
    assert Learner(problem)._vectorized._linear
    twice = nn.Sequential(nn.Flatten(), nn.Linear(2 * INPUTS, 3))
    twice[0].forward = lambda x: 2 * x.flatten(1)
    assert not Learner(a_problem(lambda: twice, "lines"))._vectorized._linear


def l1_of_ones_own(output, targets):
    return (output - functional.one_hot(targets, 3)).abs().mean()


def test_a_user_may_choose():
    """A rule for all, and a word for it that counts where nothing is known to be wrong."""
    problem = a_problem(rows_of(lambda x: x + torch.special.i0(x)), loss=l1_of_ones_own)
    assert Learner(problem).obstacle.reason == "a loss that may compare examples"
    check_alike(problem)
    known = a_problem(rows_of(torch.tanh))
    assert Learner(known).together
    assert Learner(known, Work(together=False)).obstacle.reason == "together=False"
    large = a_problem(lambda: Between(torch.tanh, 30_000))
    assert Learner(large).obstacle.reason == "steps that are faster one client a thread"
    assert Learner(large, Work(together=True)).together


@pytest.mark.parametrize("together", [None, True, False])
def test_examples_that_are_clipped_are_computed_at_once_by_the_same_rule(together):
    known, other = a_problem(rows_of(torch.tanh)), a_problem(rows_of(torch.special.i0))
    work = Work(example_norm=0.1, together=together)
    for problem, usual in ((known, True), (other, False)):
        learner = Learner(problem, work)
        at_once = usual if together is None else together
        assert (learner.together, learner._sequential._by_vmap) == (at_once, at_once)
        alone = Learner(problem, Work(example_norm=0.1, together=False)).updates([0, 2], KEY)
        assert np.abs(learner.updates([0, 2], KEY)[0] - alone[0]).max() < 1e-6


def refused_together(problem, **options):
    with pytest.raises(ValueError, match="together=True") as refused:
        Learner(problem, Work(together=True), **options)
    return str(refused.value)


def test_what_cannot_be_together_is_refused_with_the_reason():
    known = a_problem(rows_of(torch.tanh))
    assert "cohorts that nobody sees" in refused_together(known, apart=True)
    weighted = nn.CrossEntropyLoss(torch.arange(1.0, 4))
    assert "weigh" in refused_together(a_problem(rows_of(torch.tanh), loss=weighted))
    read_later = make_problem(nn.Linear(INPUTS, 3), [Pairs(*each) for each in clients()])
    assert "read when they are needed" in refused_together(read_later)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "match"),
    [("chosen by number", "vmap computes"), ("what it kept", "store nothing during a call")],
)
def test_a_word_that_is_wrong_is_refused_before_anybody_is_asked(name, match):
    learner = Learner(a_problem(UNKNOWN[name]), Work(together=True))
    with pytest.raises(ValueError, match=match):
        learner.check()


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_word_moves_nobody_elses_update(monkeypatch):
    """Examples of a client that influence each other do not influence another client's."""
    monkeypatch.setattr(dry_run, "_check_mean", lambda *losses: None)
    torch.manual_seed(0)
    model, data = UNKNOWN["by how many"](), clients()
    wild = [(1e3 * data[0][0], data[0][1]), *data[1:]]
    first, second = (
        Learner(make_problem(model, each), Work(batch=4, learning_rate=0.1, together=True))
        .updates([0, 1, 2], KEY)[0]
        for each in (data, wild)
    )  # fmt: skip
    assert first[1:].tobytes() == second[1:].tobytes()
    assert not np.array_equal(first[0], second[0])


# Programs of random steps: what is approved must give each example what it gives it alone.

INDICES = (0, -1, slice(None), slice(None), slice(1, None), None, Ellipsis, slice(0, 1))
SIZES_OF = ((-1, 2), (-1, 12), (-1, 3, 2), (2, -1), (3, -1, 2), (1, -1, 4), (-1, 6, 2, 1), (12, -1))
PADS = ((1, 0), (1, 0, 0, 1), (0, 0, 0, 0, 1, 1), (0, 0, 0, 0, 0, 0, 1, 1))
FORMULAS = ("nij,nij->ni", "nij,mij->nij", "nij,njk->nik", "nij,nik->jn", "abcd,abed->abce")
STEPS = (
    lambda draw, x: x.mean(draw.randrange(-4, 4)),
    lambda draw, x: x + x.sum(draw.randrange(-4, 4), keepdim=True),
    lambda draw, x: x + x.amax(draw.randrange(-4, 4)),
    lambda draw, x: x.mean((draw.randrange(4), draw.randrange(4))),
    lambda draw, x: x.transpose(draw.randrange(-4, 4), draw.randrange(-4, 4)),
    lambda draw, x: x.permute(draw.sample(range(x.ndim), x.ndim)),
    lambda draw, x: x.reshape(draw.choice(SIZES_OF)),
    lambda draw, x: x.reshape(x.shape[0], -1),
    lambda draw, x: x.reshape(x.shape[1], x.shape[0], -1),
    lambda draw, x: x.flatten(draw.randrange(4), draw.randrange(4)),
    lambda draw, x: x.unsqueeze(draw.randrange(-4, 4)),
    lambda draw, x: x.squeeze(draw.randrange(-4, 4)),
    lambda draw, x: x[tuple(draw.choices(INDICES, k=draw.randrange(1, 4)))],
    lambda draw, x: x + x[tuple(draw.choices(INDICES, k=draw.randrange(1, 4)))],
    lambda draw, x: torch.cat([x, 2 * x], draw.randrange(-4, 4)),
    lambda draw, x: torch.stack([x, 2 * x], draw.randrange(-4, 4)),
    lambda draw, x: x.softmax(draw.randrange(-4, 4)),
    lambda draw, x: x.cumsum(draw.randrange(-4, 4)),
    lambda draw, x: x + x.transpose(draw.randrange(4), draw.randrange(4)),
    lambda draw, x: x @ x.transpose(draw.randrange(-4, 4), draw.randrange(-4, 4)),
    lambda draw, x: torch.ones(x.shape[-2], x.shape[-2]) @ x,
    lambda draw, x: x @ torch.ones(x.shape[-1]),
    lambda draw, x: functional.layer_norm(x, x.shape[-2:]),
    lambda draw, x: functional.linear(x, torch.ones(2, x.shape[-1])),
    lambda draw, x: x.unbind(draw.randrange(-4, 4))[0],
    lambda draw, x: x.chunk(2, draw.randrange(-4, 4))[0],
    lambda draw, x: functional.pad(x, draw.choice(PADS)),
    lambda draw, x: x.expand(2, *x.shape),
    lambda draw, x: functional.glu(x, draw.randrange(-4, 4)),
    lambda draw, x: functional.avg_pool2d(x, (1, 2)),
    lambda draw, x: functional.conv1d(x, torch.ones(2, x.shape[1], 1)),
    lambda draw, x: functional.group_norm(x, 1),
    lambda draw, x: functional.instance_norm(x),
    lambda draw, x: functional.scaled_dot_product_attention(x, x, x),
    lambda draw, x: torch.einsum(draw.choice(FORMULAS), x, x),
)


class Program(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.weight, self.seed = nn.Parameter(torch.ones(1)), seed

    def forward(self, x):
        draw, x = random.Random(self.seed), x * self.weight
        for step in draw.choices(STEPS, k=draw.randrange(1, 6)):
            x = step(draw, x)
        return x


def wrong_programs(seeds):
    """How many programs are approved, and how many of these mix examples."""
    x = torch.randn(5, 2, 3, 2, generator=torch.Generator().manual_seed(0))
    data, approved, wrong = client_set([(x, torch.zeros(5))]), 0, 0
    for seed in seeds:
        model = Program(seed)
        if read(model, (), data).obstacle is None:
            whole, each = model(x), torch.cat([model(one[None]) for one in x])
            approved += 1
            wrong += whole.shape != each.shape or not torch.allclose(
                whole, each, rtol=1e-3, atol=1e-4
            )
    return approved, wrong


@pytest.mark.filterwarnings("ignore")
def test_whatever_is_approved_gives_each_example_what_it_gives_it_alone(monkeypatch):
    approved, wrong = wrong_programs(range(600))
    assert approved > 100
    assert wrong == 0
    # A rule that forgets which dimension is the examples' is caught.
    monkeypatch.setitem(RULES, "cumsum", lambda call: call.only[1])
    assert wrong_programs(range(600))[1] > 0


def test_softmax_regression_needs_no_compiler():
    """vmap loads torch's compiler, which takes seconds; a formula does without."""
    program = (
        "import sys, torch, randquant as rq\n"
        "data = [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(8)]\n"
        "rq.train(torch.nn.Linear(4, 3), data, epsilon=50, rounds=2, seed=1, progress=False)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


class Falling(nn.Module):
    """It catches what torch raises of an unknown word."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        try:
            words = self.words(x)
        except IndexError:
            words = 0 * self.words(x.clamp(0, 4))
        return self.last(words.tanh().mean(1))


class Words(Falling):
    def forward(self, x):
        return self.last(self.words(x).tanh().mean(1))


class Looking(Falling):
    """It looks words up by what is beneath torch's own layer; the table of operations lacks it."""

    def forward(self, x):
        return self.last(torch.embedding(self.words.weight, x).tanh().mean(1))


class LookingDeep(Falling):
    def forward(self, x):
        return self.last(torch.ops.aten.embedding(self.words.weight, x).tanh().mean(1))


def updates_with(model, word, work, client=1):
    """All clients' updates, of whom one has this word in its last example."""
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randint(5, (size, 4), generator=generator), torch.arange(size) % 3)
            for size in (7, 20, 12)]  # fmt: skip
    data[client][0][-1, 0] = word
    learner = Learner(make_problem(model, data), work)
    assert learner.together
    return learner.updates([0, 1, 2], KEY)[0]


@pytest.mark.parametrize("word", [5, 7, 1000, -1, -6])
@pytest.mark.parametrize(
    ("model", "together"),
    [(Words, None), (Falling, None), (Words, True), (Looking, True), (LookingDeep, True)],
)
@pytest.mark.parametrize("work", [Work(), Work(4, 2, "auto"), Work(3, 2, 0.1)])
def test_an_unknown_word_is_its_own_clients_alone(model, together, word, work):
    """torch reads another client's table beyond the end of one's own."""
    torch.manual_seed(0)
    model, work = model(), replace(work, together=together)
    usual, found = (updates_with(model, each, work) for each in (4, word))
    assert np.array_equal(found[[0, 2]], usual[[0, 2]])
    assert np.isnan(found[1]).any()


class Twice(nn.Module):
    """A layer whose weight is also held in a list, where nobody exchanges it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(INPUTS, 4), nn.Linear(4, 3)
        self.held = [self.first.weight]

    def forward(self, x):
        return self.last(self.first(x) + functional.linear(x, self.held[0].detach()).tanh())


def test_a_weight_that_is_also_held_elsewhere_is_not_exchanged():
    learner = Learner(a_problem(Twice), Work())
    assert not learner.together
    assert "something other than its layer holds" in learner.obstacle.reason
    with pytest.raises(ValueError, match="something other than its layer holds"):
        Learner(a_problem(Twice), Work(together=True))


class Remembering(nn.Module):
    """It keeps its outputs, deep in something, and is the largest of two of one shape."""

    def __init__(self, memory):
        super().__init__()
        self.last, self.memory = nn.Linear(INPUTS, 3), memory

    def kept(self):
        memory = self.memory
        memory = memory.kept if isinstance(memory, SimpleNamespace) else memory
        return memory["a"][0]["b"] if isinstance(memory, dict) else memory

    def forward(self, x):
        y, kept = self.last(x), self.kept()
        if kept and kept[-1].shape == y.shape:
            y = torch.maximum(y, kept[-1])
        kept.append(y.detach())
        return y


@pytest.mark.parametrize(
    "memory",
    [deque(), {"a": [{"b": []}]}, SimpleNamespace(kept=[])],
    ids=lambda m: type(m).__name__,
)
def test_what_a_module_keeps_is_seen_however_deep(memory):
    problem = a_problem(lambda: Remembering(memory))
    assert (
        Learner(problem, Work()).obstacle.reason == "a module that stores something during a call"
    )
    with pytest.raises(ValueError, match="store nothing during a call"):
        Learner(problem, Work(together=True)).updates([0, 1, 2], KEY)


class Largest(nn.Module):
    """A loss that keeps the largest output so far."""

    def __init__(self):
        super().__init__()
        self.top = torch.tensor(1.0)

    def forward(self, output, targets):
        self.top = torch.maximum(self.top, output.detach().abs().amax())
        return functional.cross_entropy(output, targets) / self.top


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_keeps_something_is_refused():
    learner = Learner(a_problem(lambda: nn.Linear(INPUTS, 3), loss=Largest()), Work(together=True))
    with pytest.raises(ValueError, match="store nothing during a call"):
        learner.updates([0, 1, 2], KEY)


def test_a_layer_whose_forward_was_replaced_has_no_formula():
    layer = nn.Linear(INPUTS, 3)

    def cosine(self, x):
        return functional.linear(x, functional.normalize(self.weight), self.bias)

    layer.forward = MethodType(cosine, layer)
    problem = make_problem(layer, clients())
    learner, alone = (Learner(problem, Work(together=each)) for each in (None, False))
    np.testing.assert_allclose(
        learner.updates([0, 1, 2])[0], alone.updates([0, 1, 2])[0], rtol=1e-4, atol=1e-6
    )


class Crowded(nn.Linear):
    """It centres the examples of large batches."""

    def forward(self, x):
        y = super().forward(x)
        return y - y.mean(0) if len(x) >= 16 else y


def test_what_only_large_batches_do_is_read_too():
    data = [(torch.randn(size, INPUTS), torch.arange(size) % 3) for size in (4, 20)]
    assert not Learner(make_problem(Crowded(INPUTS, 3), data), Work()).together

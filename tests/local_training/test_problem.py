"""What may be trained and what is refused, each with its sentence."""

import threading
import warnings

import numpy as np
import pytest
import torch
from data_forms import Pairs
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

from randquant.local_training import Learner, make_problem, select_parts

CLASSES = 3


def linear(outputs=CLASSES):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def some_clients():
    rng = np.random.default_rng(0)
    return {
        f"c{number}": (
            rng.normal(size=(3 + number, 4)).astype(np.float32),
            rng.integers(0, CLASSES, 3 + number),
        )
        for number in range(4)
    }


def with_change(client, features=None, targets=None):
    clients = some_clients()
    x, y = clients[client]
    pair = (x if features is None else features, y if targets is None else targets)
    return {**clients, client: pair}


class Two(nn.Module):
    """Returns what its `form` makes of two heads."""

    def __init__(self, form=lambda a, b: a):
        super().__init__()
        self.a, self.b, self.form = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES), form

    def forward(self, x):
        return self.form(self.a(x), self.b(x))


LONG = np.zeros((4, 4), np.float32)
NAN = some_clients()["c2"][0].copy()
NAN[3, 1] = np.nan
INFINITE = NAN.copy()
INFINITE[3, 1] = -np.inf

BAD_CLIENTS = {
    "no clients": ({}, ValueError, "at least one client, got 0"),
    "none in a list": ([], ValueError, "at least one client, got 0"),
    "nobody's data": (with_change("c1", LONG[:0], LONG[:0, 0]), ValueError,
                      "Client c1: Expected at least one example, got 0"),
    "lengths": (with_change("c1", LONG[:3]), ValueError,
                "Client c1: Expected as many targets as features, got 4 targets for 3"),
    "shape": (with_change("c1", np.zeros((4, 6), np.float32)), ValueError,
              r"Client c1: Expected examples like those of client c0, features \(4,\) float32"),
    "dtype": (with_change("c1", np.zeros((4, 4), np.int32)), ValueError,
              r"Client c1: .* got features \(4,\) int64"),
    "targets' shape": (with_change("c2", None, np.zeros((5, 2), np.int64)), ValueError,
                       r"Client c2: .* targets \(2,\) int64"),
    "targets' dtype": (with_change("c2", None, np.zeros(5)), ValueError,
                       r"Client c2: .* targets \(\) float32"),
    "label": (with_change("c2", None, np.array([0, 1, 3, 1, 0])), ValueError,
              "Client c2: Expected labels from 0 to 2, .* got 3"),
    "negative label": (with_change("c2", None, np.array([0, 1, -100, 1, 0])), ValueError,
                       "Client c2: Expected labels from 0 to 2, .* got -100"),
    "first client's label": (with_change("c0", None, np.array([0, 1, 7])), ValueError,
                             "Client c0: Expected labels from 0 to 2, .* got 7"),
    "nan": (with_change("c2", NAN), ValueError,
            "Client c2: Expected finite features, got NaN or infinity in example 3"),
    "infinity": (with_change("c2", INFINITE), ValueError,
                 "Client c2: Expected finite features, got NaN or infinity in example 3"),
    "pixels": (with_change("c0", np.zeros((3, 4), np.uint8)), ValueError,
               "Client c0: Expected features in float32, got uint8.*divide them by 255"),
    "words": (with_change("c0", None, np.array(["a", "b", "c"])), TypeError,
              "Client c0: Expected targets as numbers, got a ndarray of <U1"),
    "bool": (with_change("c0", np.zeros((3, 4), bool)), TypeError, "Client c0: Expected real"),
    "complex": (with_change("c0", np.zeros((3, 4), complex)), TypeError, "Client c0: Expected"),
    "numbers": ({"a": (1.0, 2.0)}, TypeError, "Client a: Expected a tuple .* got a tuple of num"),
    "three": ({"a": (LONG, LONG, LONG)}, TypeError, "Client a: .* got a tuple of 3"),
    "an array": ({"a": LONG}, TypeError, r"Client a: Expected a tuple \(features, targets\)"),
    "meta": (with_change("c0", torch.zeros((3, 4), device="meta")), ValueError, "meta device"),
    "a data set": (TensorDataset(torch.zeros(4, 4), torch.zeros(4)), TypeError,
                   "data of several clients, got a TensorDataset, which is one data set"),
    "own data set": (Pairs(LONG, [0, 1, 0, 1]), TypeError, "several clients, got a Pairs"),
    "a pair": ((LONG, np.zeros(4, np.int64)), TypeError, "several clients, got a pair of arrays"),
    "tensor": (torch.zeros(3, 4), TypeError, "several clients, got a Tensor"),
    "stream": (iter(()), TypeError, "Expected clients as a mapping"),
    "text": ("digits", TypeError, "Expected clients as a mapping"),
    "loader": ([DataLoader(TensorDataset(torch.zeros(4, 4), torch.zeros(4)))], TypeError,
               "Client 0: Expected a Dataset that is read by index, got a DataLoader"),
    "names": ({1: (LONG, LONG), "1": (LONG, LONG)}, ValueError, "got '1' more than once"),
}  # fmt: skip


def summed(output, targets):
    return functional.cross_entropy(output, targets, reduction="sum")


def each(output, targets):
    return functional.cross_entropy(output, targets, reduction="none")


def contrast(output, targets):
    """Depends on how many others there are."""
    return (output @ output.T).logsumexp(1).mean()


MINE = nn.Linear(7, 2)
"""A closure of the user's holds it."""

BAD_LOSSES = {
    "sum": (summed, ValueError, "got a sum: .* for the same batch twice"),
    "vector": (each, ValueError, r"returns one number, got shape \(6,\).*reduction='mean'"),
    "one in a row": (lambda o, t: summed(o, t)[None], ValueError, r"got shape \(1,\)"),
    "nan": (lambda o, t: o.mean() * float("nan"), ValueError, "finite loss .* got nan"),
    "infinite": (lambda o, t: o.mean() / 0, ValueError, "finite loss .* got -?inf"),
    "number": (lambda o, t: float(o.mean()), TypeError, "returns a tensor, got a float"),
    "detached": (lambda o, t: o.detach().mean(), ValueError, "depends on the trained parameters"),
    "others": (contrast, ValueError, "may not depend on the others"),
    "labels": (functional.mse_loss, ValueError, "a loss of an output"),
    "name": ("cross_entropy", TypeError, "to be a function, got 'cross_entropy': give one of"),
    "another model's": (
        lambda o, t: functional.cross_entropy(o, t) + MINE.weight.abs().sum(),
        ValueError,
        r"a parameter of shape \(2, 7\) which is not the trained model's",
    ),
    "wrong arguments": (lambda o: o.mean(), ValueError, "Expected a loss of an output"),
}


def test_targets_that_a_loss_would_stretch():
    """(n, 1) and (n,): torch makes (n, n) of them, and its mean is a mean."""
    clients = [(LONG, np.arange(4.0)), (LONG, np.arange(4.0))]
    with pytest.raises(ValueError, match=r"targets of the output's shape, got an output \(8, 1\)"):
        make_problem(linear(1), clients, loss=functional.mse_loss)
    make_problem(linear(1), [(x, y[:, None]) for x, y in clients], loss=functional.mse_loss)


@pytest.mark.parametrize("targets", [np.zeros((4, 1), np.int64), np.zeros(4)])
def test_targets_that_are_no_numbers_of_classes(targets):
    with pytest.raises(
        ValueError, match=r"takes each example's class number, int64: targets \(n\)"
    ):
        make_problem(linear(), [(LONG, targets)] * 2)


BAD_MODELS = {
    "none": (nn.Sequential(nn.Flatten()), ValueError, "a model with parameters, got a Sequential"),
    "frozen": (linear().requires_grad_(False), ValueError, "a parameter to train, got 0 of "),
    "tuple": (Two(lambda a, b: (a, b)), TypeError, "returns one tensor, .* got a tuple"),
    "mapping": (Two(lambda a, b: {"logits": a}), TypeError, "returns one tensor, .* got a dict"),
    "nan": (Two(lambda a, b: a / 0 * 0), ValueError, "finite loss .* got nan"),
    "complex": (
        nn.ParameterList([torch.zeros(2, dtype=torch.complex64)]),
        ValueError,
        "float32, .* got 0 in torch.complex64",
    ),
    "shape": (nn.Linear(9, 3), ValueError, r"features \(n, 4\) in float32, got Runtime"),
    "lazy": (nn.LazyLinear(3), ValueError, "uninitialised weight"),
    "function": (functional.relu, TypeError, "a torch nn.Module, got a function"),
    "class": (nn.Linear, TypeError, r"nn.Module, got the class Linear: give Linear\(…\)"),
    "outputs": (linear(2), ValueError, "Client c.: Expected labels from 0 to 1, .* got 2"),
}


class Remembering(nn.Module):
    """Keeps what it has seen outside its buffers, or draws from a generator of its own."""

    def __init__(self, generator=None):
        super().__init__()
        self.linear, self.seen, self.generator = nn.Linear(4, 3), 0, generator

    def forward(self, x):
        self.seen = self.seen + float(x.detach().sum())
        noise = 0 if self.generator is None else torch.rand(3, generator=self.generator)
        return self.linear(x) * (self.seen if self.generator is None else 1) + noise


class Counting(nn.Module):
    """Counts batches with an outlier, or with none; its dropout is off where it is kept still."""

    def __init__(self, outliers):
        super().__init__()
        self.outliers = outliers
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.training and bool((x.abs() > 9).any()) == self.outliers:
            self.count += 1
        return functional.dropout(x, 0.5, self.training)


@pytest.mark.parametrize("outliers", [False, True])
@pytest.mark.parametrize("buffers", ["refuse", "frozen"])
def test_the_first_clients_examples_do_not_decide_which_layers_are_kept_still(outliers, buffers):
    """Nine of ten clients' updates would depend on whether the first has an outlier."""
    model = nn.Sequential(Counting(outliers), nn.Linear(4, 3))
    first = some_clients()["c0"][0].copy()
    first[0, 0] = 99
    with pytest.raises(ValueError, match=r"all examples change, or none, got 0\.count"):
        make_problem(model, with_change("c0", features=first), buffers=buffers)
    if buffers == "frozen":
        still = make_problem(model, some_clients(), buffers=buffers).dry_run.still
        assert still == (() if outliers else ("0",))


class Locked(nn.Linear):
    """Holds what cannot be copied."""

    def __init__(self):
        super().__init__(4, 3)
        self.lock = threading.Lock()


def overwriting():
    """The gradient of a ReLU needs its output, which the dropout overwrites."""
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5, inplace=True))


class Listed(nn.Module):
    """Its second layer is in a list, which torch does not look into."""

    def __init__(self):
        super().__init__()
        self.first, self.others = nn.Linear(4, 6), [nn.Linear(6, 3)]

    def forward(self, x):
        return self.others[0](self.first(x))


def test_constants_that_a_loss_reads_are_no_parameters():
    def distilled(output, targets):
        with torch.no_grad():
            soft = MINE.weight.sum()
        return functional.cross_entropy(output, targets) + 0 * soft + 0 * MINE.bias.detach().sum()

    make_problem(linear(), some_clients(), loss=distilled)
    make_problem(linear(), some_clients(), parts=("0.*",))  # those that are frozen are its own


BAD_MODELS |= {
    "listed": (Listed(), ValueError, r"of shape \(3, 6\) which .* nn.ModuleList"),
    "in place": (overwriting(), ValueError, "loss with a gradient, got Runt.* inplace=False"),
    "bent": (
        Two(lambda a, b: (a * 0).abs().sqrt() + b),
        ValueError,
        r"finite gradient at the initial weights, got NaN or infinity for a\.weight",
    ),
    "lock": (Locked(), ValueError, "can be copied, got TypeError from copy.deepcopy: cannot pickl"),
    "memory": (Remembering(), ValueError, "Expected the same loss of the same batch"),
    "generator": (Remembering(torch.Generator()), ValueError, "Expected the same loss"),
}


def test_a_part_that_the_output_does_not_use_is_refused():
    model = Two()
    make_problem(model, some_clients(), parts=("a.*",))
    with pytest.raises(
        ValueError, match=r"depends on the trained .* got a constant in b\.weight, b"
    ):
        make_problem(model, some_clients(), parts=("b.*",))


BAD = {
    f"{what}: {name}": (what, *case)
    for what, cases in (("clients", BAD_CLIENTS), ("loss", BAD_LOSSES), ("model", BAD_MODELS))
    for name, case in cases.items()
}


@pytest.mark.parametrize(("what", "value", "kind", "sentence"), BAD.values(), ids=BAD)
def test_what_cannot_be_trained_is_refused_in_a_sentence(what, value, kind, sentence):
    right = {"model": linear(), "clients": some_clients()}
    with pytest.raises(kind, match=sentence):
        make_problem(**{**right, what: value})


def test_a_digest_is_of_what_is_public():
    first = make_problem(linear(), some_clients())
    assert first.digest == make_problem(linear(), some_clients()).digest
    other, changed = linear(), linear()
    with torch.no_grad():
        changed[0].bias[2] += 1e-7
    digests = {
        problem.digest
        for problem in (
            first,
            make_problem(changed, some_clients()),
            make_problem(linear(), {**some_clients(), "c5": some_clients()["c0"]}),
            make_problem(linear(), some_clients(), parts=("0.*",)),
            make_problem(linear(), some_clients(), loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
            make_problem(nn.Sequential(*other, nn.Identity(), nn.Tanh()), some_clients()),
        )
    }
    assert len(digests) == 6
    # Neither an example nor the number of a client's examples can be tested by it.
    data = with_change("c1", np.ones((9, 4), np.float32), np.zeros(9, np.int64))
    assert make_problem(linear(), data).digest == first.digest


class Tied(nn.Module):
    """The decoder's matrix is the encoder's."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return self.decoder(self.encoder(x).relu())


def test_parts_by_pattern():
    model = linear()
    every = ("0.weight", "0.bias", "2.weight", "2.bias")
    assert select_parts(model) == every
    assert select_parts(model, ("2.*", "*.bias")) == ("0.bias", "2.weight", "2.bias")
    assert select_parts(model, "2.*") == every[2:]
    assert select_parts(model, frozen=("0.*",)) == every[2:]
    assert select_parts(model, ("*.weight",), ("0.*",)) == ("2.weight",)
    assert select_parts(model, ("[02].bias",)) == ("0.bias", "2.bias")
    model[0].requires_grad_(False)
    assert select_parts(model) == every[2:]
    for wrong, sentence in (
        ({"parts": ("head.*",)}, "Expected parts to match .* got 'head"),
        ({"parts": ("2.*", "nothing")}, "got 'nothing'"),
        ({"frozen": ("body*",)}, "Expected frozen to match"),
        ({"parts": ("0.*",)}, "a parameter to train, got 0 of "),  # requires_grad=False
        ({"frozen": ("2.*",)}, "a parameter to train, got 0 of "),
    ):
        with pytest.raises(ValueError, match=sentence):
            select_parts(model, **wrong)


def test_tied_parameters_are_counted_once():
    model = Tied()
    assert select_parts(model) == ("encoder.weight", "encoder.bias", "decoder.bias")
    assert select_parts(model, ("decoder.*",)) == ("encoder.weight", "decoder.bias")
    assert select_parts(model, frozen=("decoder.*",)) == ("encoder.bias",)
    clients = some_clients()
    problem = make_problem(model, clients)
    assert problem.dimension == 16 + 4 + 4
    learner = Learner(problem)
    learner.load(np.arange(24, dtype=np.float32))
    trained = learner.trained_model()
    assert trained.decoder.weight is trained.encoder.weight
    assert torch.equal(trained.decoder.weight, torch.arange(16.0).view(4, 4))


class Filtering(nn.Module):
    """Weighs frequencies by a frozen complex parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, CLASSES)
        self.filter = nn.Parameter(torch.randn(3, dtype=torch.cfloat), requires_grad=False)

    def forward(self, x):
        return self.linear(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=4))


def test_a_frozen_complex_parameter_is_as_wide_as_the_others():
    double = Filtering().double()
    double.filter.data = double.filter.data.cdouble()
    narrow, wide = (make_problem(model, some_clients()) for model in (Filtering(), double))
    first, second = (Learner(problem) for problem in (narrow, wide))
    assert np.array_equal(first.updates([0, 1])[0], second.updates([0, 1])[0])
    assert second.trained_model().filter.dtype == torch.cdouble
    assert narrow.parts == ("linear.weight", "linear.bias")


@pytest.mark.parametrize("computed", [nn.utils.weight_norm, prune.l1_unstructured])
def test_weights_that_a_layer_computes_from_others_may_be_there(computed):
    """Torch does not copy a model with them; nor do they hold up after a step."""
    torch.manual_seed(0)
    layer = nn.Linear(4, CLASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old form of weight_norm is
        computed(layer, "weight", *([] if computed is nn.utils.weight_norm else [0.5]))
    model = nn.Sequential(layer)
    learner = Learner(make_problem(model, some_clients()))
    learner.load(learner.parameters() + np.float32(0.5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5
    x, y = map(torch.from_numpy, some_clients()["c2"])
    parts = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
    found = learner.updates([2])[0][0]
    assert np.allclose(found, torch.cat([part.reshape(-1) for part in parts]), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4"])
def test_floats_of_any_kind_become_float32(dtype):
    clients = {name: (x.astype(dtype), y) for name, (x, y) in some_clients().items()}
    features, _ = make_problem(linear(), clients).clients.take(0, np.arange(3))
    assert features.dtype == torch.float32
    assert np.array_equal(features, clients["c0"][0].astype(np.float32)[:3])


def test_cross_entropy_of_one_output_is_refused():
    """It is 0 throughout, and a run would spend its epsilon on nothing."""
    numbers = [(x, x[:, :1]) for x, _ in some_clients().values()]
    for clients in (some_clients(), numbers):
        with pytest.raises(ValueError, match=r"got outputs of shape .* always 0.*mse_loss"):
            make_problem(linear(1), clients)


def test_a_module_of_mean_squares_is_mse_loss():
    clients = [(x, x[:, :1]) for x, _ in some_clients().values()]
    assert make_problem(linear(1), clients, loss=nn.MSELoss()).loss is functional.mse_loss

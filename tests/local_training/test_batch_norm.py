"""Running statistics: refused, frozen, or the server's own on public examples."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from randquant.channels import Key
from randquant.local_training import Learner, Work, make_problem

RNG = np.random.default_rng(2)
INFINITE = np.full((3, 4), np.inf, np.float32)
PUBLIC = (3 * RNG.normal(size=(20, 4)) + 1).astype(np.float32)


def clients(scale=1.0):
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(5, 4)).astype(np.float32), rng.integers(0, 3, 5)) for _ in range(3)]
    return [(scale * x if number == 0 else x, y) for number, (x, y) in enumerate(pairs)]


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 6),
        nn.BatchNorm1d(6), nn.Linear(6, 3),
    )  # fmt: skip


class Own(nn.Module):
    """A running mean as people write one themselves, in place or by assignment."""

    def __init__(self, in_place, always=False):
        super().__init__()
        self.linear, self.in_place, self.always = nn.Linear(4, 3), in_place, always
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if self.training or self.always:
            with torch.no_grad():
                mean = 0.9 * self.mean + 0.1 * x.mean(0)
                if self.in_place:
                    self.mean.copy_(mean)
                else:
                    self.mean = mean
        return self.linear(x - self.mean)


class Late(Own):
    """Keeps what is large, which the first client's data are not."""

    def forward(self, x):
        if x.abs().max() > 100:
            self.mean = x.mean(0) if not self.in_place else self.mean.copy_(x.mean(0))
        return self.linear(x - self.mean)


class Filled(nn.Module):
    """Keeps a mean where it kept none."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", None)

    def forward(self, x):
        if self.training:
            self.mean = x.mean(0)
        return self.linear(x)


class Still(Own):
    """Writes what was there before, of the first examples."""

    def forward(self, x):
        if self.training:
            self.mean.copy_(self.mean)
        return self.linear(x - self.mean)


def spectral(of):
    torch.manual_seed(0)
    model = nn.Sequential(of(nn.Linear(4, 3)))
    model(torch.ones(2, 4))  # the old form keeps what it computed in a call
    return model


@pytest.mark.parametrize(
    ("model", "named", "normalises"),
    [
        (normalised(), "BatchNorm1d with 1.running_mean", True),
        (nn.Sequential(Own(True)), "Own with 0.mean", False),
        (nn.Sequential(Own(False)), "Own with 0.mean", False),
        (nn.Sequential(Filled()), "Filled with 0.mean", False),
        (nn.Sequential(Still(True)), "Still with 0.mean", False),
        (spectral(parametrizations.spectral_norm), "_SpectralNorm with 0.parametrizations", False),
        (spectral(nn.utils.spectral_norm), "Linear with 0.weight_u", False),
    ],
)
def test_running_statistics_are_refused_with_the_way_out(model, named, normalises):
    with pytest.raises(ValueError, match=f"without running statistics, got {named}") as refused:
        make_problem(model, clients())
    assert "buffers='frozen'" in str(refused.value)
    for way in ("GroupNorm", "buffers='server'"):
        assert (way in str(refused.value)) == normalises


def test_other_buffers_are_no_statistics():
    counted = nn.Linear(4, 3)
    counted.register_buffer("positions", torch.arange(5))
    counted.register_buffer("mask", torch.tensor([True, False]))
    counted.register_buffer("empty", torch.full((2,), torch.nan))
    problem = make_problem(counted, clients())
    assert problem.parts == ("weight", "bias")
    batchless = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False))
    assert make_problem(nn.Sequential(batchless, nn.Linear(6, 3)), clients()).dry_run.still == ()


@pytest.mark.parametrize("build", [normalised, lambda: nn.Sequential(Own(True), nn.Identity())])
@pytest.mark.parametrize("local", [Work(), Work(epochs=2, learning_rate=0.1)])
def test_frozen_statistics_stay_as_they_are(build, local):
    model = build()
    model.eval() if local.learning_rate else model.train()  # which mode it comes in is no matter
    for buffer in model.buffers():
        buffer.add_(1)
    problem = make_problem(model, clients(), buffers="frozen")
    before = copy.deepcopy(model.state_dict())
    learner = Learner(problem, local)
    learner.updates([0, 1, 2], Key.from_seed(0))
    learner.evaluate()
    trained = learner.trained_model().state_dict()
    assert all(torch.equal(before[name], trained[name]) for name in before)
    assert problem.dry_run.draws == any(isinstance(each, nn.Dropout) for each in model.modules())


@pytest.mark.parametrize("build", [nn.utils.spectral_norm, parametrizations.spectral_norm])
def test_spectral_norm_keeps_its_vectors_where_they_are_frozen(build):
    model = spectral(build)
    learner = Learner(make_problem(model, clients(), buffers="frozen"), Work())
    found = learner.updates([1], Key.from_seed(0))[0][0]
    x, y = map(torch.from_numpy, clients()[1])
    loss = functional.cross_entropy(model.eval()(x), y)
    parts = torch.autograd.grad(loss, list(model.parameters()))
    assert np.allclose(found, torch.cat([part.reshape(-1) for part in parts]), atol=1e-6)
    before, after = model.state_dict(), learner.trained_model().state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


class Counting(nn.Linear):
    """Counts what it evaluates."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.count += len(x)
        return super().forward(x)


def test_buffers_that_change_anyway_are_refused():
    with pytest.raises(ValueError, match="leaves unchanged, got a new value of count"):
        make_problem(Counting(), clients())
    for in_place in (True, False):
        with pytest.raises(ValueError, match="leaves unchanged, got a new value of 0"):
            make_problem(nn.Sequential(Own(in_place, always=True)), clients(), buffers="frozen")


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("local", [Work(), Work(epochs=2, learning_rate=0.1), Work(2, 1, 0.1)])
def test_a_buffer_that_changes_later_is_refused_before_anybody_sees_it(in_place, local):
    """The next client's update would depend on this client's data."""
    problem = make_problem(Late(in_place), clients()[1:] + [(1e3 * x, y) for x, y in clients()[:1]])
    learner = Learner(problem, local)
    learner.updates([0, 1], Key.from_seed(0))
    with pytest.raises(ValueError, match="training leaves unchanged, got a new value of mean"):
        learner.updates([2, 0], Key.from_seed(0))


class LateStatistics(nn.Linear):
    """Counts in a running mean, by torch's own kernel, once features are large."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x):
        large = bool(x.abs().max() > 100)
        x = functional.batch_norm(x, self.mean, self.variance, training=large)
        return super().forward(x)


def test_running_statistics_that_one_late_client_moves_are_refused():
    """The kernel does not mark them as changed."""
    data = [(1e3 * x if late else x, y) for late, (x, y) in enumerate(clients()[:2])]
    learner = Learner(make_problem(LateStatistics(), data), Work())
    learner.updates([0], Key.from_seed(0))
    with pytest.raises(ValueError, match="training leaves unchanged, got a new value of mean"):
        learner.updates([1], Key.from_seed(0))


def words(**options):
    torch.manual_seed(0)
    embedding = nn.Embedding(9, 4, **options)
    return nn.Sequential(embedding, nn.Flatten(), nn.Linear(8, 3))


def of_words():
    rng = np.random.default_rng(1)
    return [(rng.integers(0, 9, (5, 2)), rng.integers(0, 3, 5)) for _ in range(3)]


@pytest.mark.parametrize("largest", [0.1, 100.0])
def test_an_embedding_does_not_rescale_weights_that_others_see(largest):
    """It does so in its forward pass, in place, for the words that a client has."""
    with pytest.raises(ValueError, match=r"change of 0\.weight by .* omit max_norm"):
        make_problem(words(max_norm=largest), of_words())


class Rescaling(nn.Linear):
    """Changes its weights where features are large, which the first client's are not."""

    def forward(self, x):
        if x.abs().max() > 100:
            with torch.no_grad():
                self.weight.mul_(0.5)
        return super().forward(x)


@pytest.mark.parametrize("local", [Work(), Work(example_norm=1.0)])
def test_weights_that_change_later_are_refused_before_anybody_sees_them(local):
    everyone = clients()[1:] + [(1e3 * x, y) for x, y in clients()[:1]]
    learner = Learner(make_problem(Rescaling(4, 3), everyone), local)
    with pytest.raises(ValueError, match="training leaves unchanged, got a new value of weight"):
        learner.updates([0, 2], Key.from_seed(0))


@pytest.mark.parametrize(
    "local", [Work(), Work(epochs=2, learning_rate="auto"), Work(example_norm=1.0)]
)
def test_sparse_gradients_are_those_of_dense_ones(local):
    sparse, dense = (
        Learner(make_problem(words(sparse=kind), of_words()), local).updates(
            [0, 2], Key.from_seed(0)
        )
        for kind in (True, False)
    )
    for one, other in zip(sparse[0], dense[0], strict=True):
        assert np.abs(one - other).max() < 1e-5


def expected_statistics(model):
    """Of the first layer by hand; of the second from what the first one gives."""
    x = torch.from_numpy(PUBLIC)
    with torch.no_grad():
        found = []
        for index in (0, 4):
            x = model[index](x)
            found.append((x.mean(0), x.var(0)))
            norm = model[index + 1]
            x = functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True).relu()
    return found[0]


def test_the_servers_statistics_are_those_of_public_examples_at_the_loaded_weights():
    problem = make_problem(normalised(), clients(), buffers="server", public=PUBLIC)
    assert problem.dry_run.still == ("1", "5")
    learner = Learner(problem)
    for shift in (0.0, 0.5, -0.2):
        learner.load(learner.parameters() + np.float32(shift))
        model = learner.trained_model()
        mean, variance = expected_statistics(model)
        assert torch.allclose(model[1].running_mean, mean, atol=1e-5)
        assert torch.allclose(model[1].running_var, variance, rtol=1e-4, atol=1e-8)
        assert model[1].momentum == problem.model[1].momentum == 0.1
    # A function of the weights: of what came before nothing is left.
    other = Learner(problem)
    other.load(learner.parameters())
    again = other.trained_model().state_dict()
    assert all(torch.equal(again[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize("options", [{}, {"epochs": 2, "learning_rate": 0.1}])
def test_clients_normalise_with_the_servers_statistics_and_leave_them_alone(options):
    local = Work(together=False, **options)  # bit for bit, whoever is computed with it
    problem = make_problem(normalised(), clients(), buffers="server", public=PUBLIC)
    learner, key = Learner(problem, local), Key.from_seed(4)
    learner.load(learner.parameters() * np.float32(1.1))
    before = learner.trained_model().state_dict()
    update = learner.updates([1], key)[0][0]
    after = learner.trained_model().state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    # Another client's data have no influence, whoever comes first.
    loud = make_problem(normalised(), clients(1e4), buffers="server", public=PUBLIC)
    other = Learner(loud, local)
    other.load(learner.parameters())
    assert np.array_equal(other.updates([0, 1], key)[0][1], update)
    frozen = Learner(make_problem(learner.trained_model(), clients(), buffers="frozen"), local)
    assert np.array_equal(frozen.updates([1], key)[0][0], update)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"buffers": "server"}, "Expected public examples with buffers='server'"),
        ({"public": PUBLIC}, "Expected public examples with buffers='server'"),
        ({"buffers": "server", "public": PUBLIC[:1]}, "Public examples: Expected two examples"),
        ({"buffers": "server", "public": PUBLIC[:, :3]}, "Public examples: Expected examples like"),
        (
            {"buffers": "server", "public": INFINITE},
            "Public examples: Expected finite",
        ),
        ({"buffers": "drop"}, "buffers to be one of"),
    ],
)
def test_what_the_server_cannot_do(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_problem(normalised(), clients(), **options)


def test_the_server_computes_batch_norm_only():
    with pytest.raises(ValueError, match="BatchNorm layers with buffers='server', got Own"):
        make_problem(nn.Sequential(Own(True)), clients(), buffers="server", public=PUBLIC)

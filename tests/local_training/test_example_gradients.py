"""The update of a site that protects each of its examples, beside a slow loop and beside Opacus."""

from __future__ import annotations

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch
from scripted import check_follows
from torch import nn
from torch.nn import functional

import randquant as rq
from randquant.aggregation import clip_to_norm

CLIP_NORMS = (0.3, 1e4)  # that clips nearly every record of these models, and none
RECORDS = 7

# Torch has no batched rule for its fused attention, and takes the records of a pass one by one.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


class Named(nn.Module):
    """A module from its layers by name and a function of them and the inputs."""

    def __init__(self, call, **layers):
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs, **named):
        return self.call(self, *inputs, **named)


def flat_head(*layers, width, classes=3):
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, classes))


def tied():
    """An embedding whose matrix is the last layer's too."""
    embed, out = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
    out.weight = embed.weight
    return Named(lambda m, x: m.out(m.embed(x).mean(1).tanh()), embed=embed, out=out)


def attended(m, x):
    return m.head(m.attention(x, x, x, need_weights=False)[0].mean(1))


def last(m, x):
    return m.head(m.cell(x)[0][:, -1])


def recurrent(kind, width=5, **options):
    return Named(last, cell=kind(4, 5, batch_first=True, **options), head=nn.Linear(width, 3))


def residual(m, x):
    return m.head(x + m.inner(functional.gelu(m.outer(x))))


VECTORS, SEQUENCES, IMAGES, WORDS = (6,), (5, 4), (2, 6, 6), None
ARCHITECTURES = {  # (model, shape of a record's features; None for five words of six)
    "linear": (lambda: nn.Linear(6, 3), VECTORS),
    "two layers": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), VECTORS),
    "four layers, layer norm": (lambda: nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 8), nn.ELU(), nn.Linear(8, 4),
        nn.Softplus(), nn.Linear(4, 3)), VECTORS),
    "convolution 1d": (lambda: flat_head(nn.Conv1d(5, 4, 3), nn.ReLU(), width=8), SEQUENCES),
    "convolution 2d": (lambda: flat_head(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                         width=36), IMAGES),
    "convolution 3d": (lambda: flat_head(nn.Unflatten(1, (1, 2)), nn.Conv3d(1, 3, 2), width=75),
                       IMAGES),
    "transposed": (lambda: flat_head(nn.ConvTranspose2d(2, 3, 2, stride=2), nn.AvgPool2d(3),
                                     width=48), IMAGES),
    "depthwise": (lambda: flat_head(nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, 3, 1),
                                    nn.AdaptiveAvgPool2d(1), width=3), IMAGES),
    "dilated, circular": (lambda: flat_head(
        nn.Conv2d(2, 2, 3, dilation=2, padding=2, padding_mode="circular"), width=72), IMAGES),
    "group norm": (lambda: flat_head(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), width=64), IMAGES),
    "instance norm": (lambda: flat_head(
        nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), width=64), IMAGES),
    "embedding, mean": (lambda: Named(lambda m, x: m.head(m.embed(x).mean(1)),
                                      embed=nn.Embedding(6, 4), head=nn.Linear(4, 3)), WORDS),
    "embedding, padding": (lambda: nn.Sequential(
        nn.Embedding(6, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3)), WORDS),
    "embedding, by frequency": (lambda: nn.Sequential(
        nn.Embedding(6, 4, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(20, 3)), WORDS),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(6, 4), nn.Linear(4, 3)), WORDS),
    "bag of largest": (lambda: nn.Sequential(nn.EmbeddingBag(6, 4, mode="max"), nn.Linear(4, 3)),
                       WORDS),
    "rnn": (lambda: recurrent(nn.RNN), SEQUENCES),
    "gru": (lambda: recurrent(nn.GRU), SEQUENCES),
    "lstm": (lambda: recurrent(nn.LSTM, 10, num_layers=2, bidirectional=True), SEQUENCES),
    "attention": (lambda: Named(attended, attention=nn.MultiheadAttention(4, 2, batch_first=True),
                                head=nn.Linear(4, 3)), SEQUENCES),
    "transformer": (lambda: flat_head(
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), width=20), SEQUENCES),
    "residual": (lambda: Named(residual, outer=nn.Linear(6, 9), inner=nn.Linear(9, 6),
                               head=nn.Linear(6, 3)), VECTORS),
    "tied weights": (tied, WORDS),
    "a layer twice": (lambda: Named(lambda m, x: m.head(m.one(torch.tanh(m.one(x)))),
                                    one=nn.Linear(6, 6), head=nn.Linear(6, 3)), VECTORS),
    "scalar": (lambda: Named(lambda m, x: m.head(x) * m.scale + m.shift, head=nn.Linear(6, 3),
                             scale=nn.Parameter(torch.tensor(0.7)),
                             shift=nn.Parameter(torch.tensor(0.1))), VECTORS),
    "prelu": (lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU(4), nn.Linear(4, 3)), VECTORS),
    "bilinear": (lambda: Named(lambda m, x: m.pair(x[:, :2], x[:, 2:]),
                               pair=nn.Bilinear(2, 4, 3)), VECTORS),
    "a set": (lambda: Named(lambda m, x: m.head(m.each(x).relu().amax(1)), each=nn.Linear(4, 8),
                            head=nn.Linear(8, 3)), SEQUENCES),
    "weight norm": (lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 3)),
        VECTORS),
    "a parameter that no output needs": (lambda: Named(
        lambda m, x: m.head(x), head=nn.Linear(6, 3), other=nn.Linear(2, 2)), VECTORS),
    "unlike branches": (lambda: Named(
        lambda m, x: torch.where(x.sum(1, keepdim=True) > 0, m.one(x), m.two(x)),
        one=nn.Linear(6, 3), two=nn.Linear(6, 3)), VECTORS),
    "centred by its records": (lambda: Named(lambda m, x: m.head(x - 0.5 * x.mean(0)),
                                             head=nn.Linear(6, 3)), VECTORS),
}  # fmt: skip


def made(name):
    """A model, and a site's records."""
    build, shape = ARCHITECTURES[name]
    torch.manual_seed(len(name))
    model = build()
    if shape is None:
        x = torch.randint(6, (RECORDS, 5))
        x[0] = 2  # a word that comes five times
    else:
        x = torch.randn((RECORDS, *shape))
    return model, x, torch.randint(3, (RECORDS,))


def slowly(model, x, y, clip_norm, loss=functional.cross_entropy):
    """Minus the sum of clipped gradients, record by record in float64."""
    exact = copy.deepcopy(model).double()
    weights = list(exact.parameters())
    total = torch.zeros(sum(each.numel() for each in weights), dtype=torch.float64)

    def record(part, place):
        one = part[place : place + 1]
        return one.double() if one.is_floating_point() else one

    for place in range(len(y)):
        named = {n: record(part, place) for n, part in x.items()} if type(x) is dict else {}
        output = exact(**named) if named else exact(record(x, place))
        parts = torch.autograd.grad(
            loss(output, record(y, place)), weights, allow_unused=True, materialize_grads=True
        )
        gradient = torch.cat([part.reshape(-1) for part in parts])
        total -= gradient * min(1.0, clip_norm / float(gradient.norm()))
    return total.numpy()


def flat(update):
    return torch.cat([part.reshape(-1) for part in update.values()]).numpy()


def close(found, expected):
    """Relative to the whole vector: a coordinate may be a difference of larger ones."""
    return np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gives_the_sum_of_its_records_clipped_gradients(name, clip_norm):
    model, x, y = made(name)
    before = copy.deepcopy(model.state_dict())
    update = rq.example_update(model, (x, y), clip_norm=clip_norm)
    assert {n: each.shape for n, each in update.items()} == {
        n: each.shape for n, each in model.named_parameters()
    }
    assert close(flat(update), slowly(model, x, y, clip_norm))
    assert all(torch.equal(each, before[n]) for n, each in model.state_dict().items())


LINEAR = nn.Linear(6, 2), torch.randn(70, 6), torch.randint(2, (70,))
"""More records than a pass takes."""


def two_inputs(m, a, b):
    return m.left(a) * torch.tanh(m.right(b))


def named_inputs():
    model = Named(two_inputs, left=nn.Linear(3, 4), right=nn.Linear(5, 4))
    return model, {"a": torch.randn(6, 3), "b": torch.randn(6, 5)}, torch.randint(4, (6,))


def regression():
    layers = nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 1))
    return layers, torch.randn(9, 6), torch.randn(9, 1)


OTHERWISE = {  # (model, features, targets), loss
    "many records": (lambda: LINEAR, functional.cross_entropy),
    "two inputs by name": (named_inputs, functional.cross_entropy),
    "regression": (regression, functional.mse_loss),
}


@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
@pytest.mark.parametrize("name", OTHERWISE)
def test_other_data_and_losses_give_that_sum_too(name, clip_norm):
    build, loss = OTHERWISE[name]
    model, x, y = build()
    found = flat(rq.example_update(model, (x, y), loss, clip_norm=clip_norm))
    assert close(found, slowly(model, x, y, clip_norm, loss))


@pytest.mark.parametrize("build", [regression, lambda: made("gru")], ids=["regression", "gru"])
@pytest.mark.parametrize("examples", [1, 3, 60])
def test_no_example_moves_what_is_sent_further_than_its_public_share(build, examples):
    """Also in a site with many times as many examples, whose sum is clipped when it is encoded."""
    (model, x, y), norm, other = build(), 0.7, torch.Generator().manual_seed(1)
    loss = functional.mse_loss if build is regression else functional.cross_entropy
    usual = flat(rq.example_update(model, (x, y), loss, clip_norm=norm)) / examples
    for scale in (1e-3, 1.0, 1e4):
        changed = x.clone()
        changed[1] = scale * torch.randn(x[1].shape, generator=other)
        found = flat(rq.example_update(model, (changed, y), loss, clip_norm=norm)) / examples
        sent = [clip_to_norm(each, norm).astype(float) for each in (usual, found)]
        moved = np.linalg.norm(sent[0] - sent[1])
        assert 0 < moved <= (2 / examples + 2**-20) * norm


def test_a_site_counts_by_its_examples_and_the_mean_is_that_over_all():
    """What a trusted curator would compute of all, but for rounding."""
    model, x, y = LINEAR
    parts = ((x[:10], y[:10]), (x[10:], y[10:]))
    sums = [flat(rq.example_update(model, part, clip_norm=0.1)) for part in parts]
    assert close(np.mean(sums, axis=0) / 35, slowly(model, x, y, 0.1) / len(y))


def test_only_what_is_trained_is_sent_and_tables_are_read():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": [0.1, 0.2, 0.3], "dose": [1.0, 0.0, 2.0], "ill": [0, 1, 0]})
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    local = rq.Local(learning_rate=0, parts="1.*", columns=(["age", "dose"], "ill"))
    update = rq.example_update(model, table, clip_norm=1.0, local=local)
    assert list(update) == ["1.weight", "1.bias"]
    x, y = torch.tensor(table[["age", "dose"]].to_numpy()).float(), torch.tensor(table["ill"])
    assert close(flat(update), slowly(model[1], model[0](x).detach(), y, 1.0))


def test_dropout_draws_a_mask_for_each_record():
    """The sum is one of those that the masks of three inputs of two records allow."""
    torch.manual_seed(0)
    # One class, so that two clipped gradients cannot cancel.
    model, x, y = nn.Linear(3, 2), torch.randn(2, 3), torch.tensor([1, 1])
    dropping = nn.Sequential(nn.Dropout(0.5), model)
    masks = [2.0 * torch.tensor(each) for each in itertools.product((0.0, 1.0), repeat=3)]
    possible = [
        slowly(model, torch.stack([x[0] * one, x[1] * two]), y, 0.3)
        for one, two in itertools.product(masks, repeat=2)
    ]
    drawn = set()
    for _ in range(40):
        update = rq.example_update(dropping, (x, y), clip_norm=0.3)
        found = flat(update)
        (which,) = (n for n, each in enumerate(possible) if close(found, each))
        drawn.add(which)
    assert len(drawn) > 4


def test_masks_of_dropout_follow_from_the_systems_bytes_alone():
    model, data = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2)), LINEAR[1:]

    def update():
        torch.manual_seed(0)  # who knows torch's seed, or a round before, knows nothing of it
        return flat(rq.example_update(model, data, clip_norm=9.0)).tolist()

    check_follows(update)


def remembering():
    def call(module, x):
        module.seen = x.mean(0)
        return module.head(x)

    return Named(call, head=nn.Linear(6, 3))


KEEPING = {  # what is of other records, or changes the model while it is computed
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), VECTORS, "BatchNorm"),
    "batch norm of the batch alone": (
        lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)),
        VECTORS, "more than 1 value per channel"),
    "instance norm that tracks": (lambda: flat_head(
        nn.InstanceNorm2d(2, track_running_stats=True), width=72), IMAGES, "InstanceNorm"),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), VECTORS,
                      "buffer"),
    "an embedding that renorms": (lambda: nn.Sequential(
        nn.Embedding(6, 4, max_norm=0.5), nn.Flatten(), nn.Linear(20, 3)), WORDS, "max_norm"),
    "what is kept of a record": (remembering, VECTORS, "attribute"),
}  # fmt: skip


@pytest.mark.parametrize("name", KEEPING)
def test_what_keeps_something_of_a_record_is_refused(name, monkeypatch):
    build, shape, reason = KEEPING[name]
    monkeypatch.setitem(ARCHITECTURES, name, (build, shape))
    model, x, y = made(name)
    with pytest.raises(ValueError, match=reason):
        rq.example_update(model, (x, y), clip_norm=1.0)


OPACUS = [  # not where it has no rule (recurrent cells, attention, bags, pairs), nor where version
    # 1.6 departs from autograd: circular padding, words that are padding or scaled by frequency
    name for name in ARCHITECTURES if name not in {
        "dilated, circular", "embedding, padding", "embedding, by frequency", "bag",
        "bag of largest", "rnn", "gru", "lstm", "attention", "transformer", "bilinear",
        "a parameter that no output needs", "centred by its records",
    }
]  # fmt: skip


@pytest.mark.parametrize("name", OPACUS)
def test_opacus_clips_the_same_sum(name):
    """An independent implementation, where it is installed and has rules for the layers."""
    opacus = pytest.importorskip("opacus.grad_sample")
    model, x, y = made(name)
    other = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watched = opacus.GradSampleModule(other, loss_reduction="sum")
        functional.cross_entropy(watched(x), y, reduction="sum").backward()
    each = torch.cat([w.grad_sample.reshape(RECORDS, -1) for w in other.parameters()], 1).double()
    scale = (0.3 / each.norm(dim=1)).clamp(max=1.0)
    expected = -(each * scale[:, None]).sum(0).numpy()
    update = rq.example_update(model, (x, y), clip_norm=0.3)
    assert close(flat(update), expected)


REFUSED = {
    "no clip_norm": ({"clip_norm": 0.0}, "clip_norm"),
    "local steps": ({"local": rq.Local(epochs=2, learning_rate=0.1)}, "one gradient of each"),
    "epochs": ({"local": rq.Local(epochs=2)}, "one gradient of each"),
    "a batch": ({"local": rq.Local(learning_rate=0, batch=2)}, "one gradient of each"),
    "running statistics": ({"model": nn.BatchNorm1d(6)}, "BatchNorm1d"),
    "a number that is missing": (
        {"data": (torch.full((2, 6), np.nan), torch.zeros(2).long())},
        "NaN",
    ),
    "no data": ({"data": (torch.zeros(0, 6), torch.zeros(0).long())}, "Client 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bound_is_refused(name):
    model, x, y = LINEAR
    changes, reason = REFUSED[name]
    given = {"model": model, "data": (x, y), "clip_norm": 1.0, **changes}
    with pytest.raises(ValueError, match=reason):
        rq.example_update(given.pop("model"), given.pop("data"), **given)


@pytest.mark.parametrize("place", [0, 1, 29])
def test_a_record_that_overflows_counts_as_none_wherever_it_stands(place):
    """It decides neither whether the site answers nor what others count for."""
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(30, 3, generator=draw), torch.randn(30, 1, generator=draw)
    model = nn.Linear(3, 1)
    wide = x.clone()
    wide[place] = 1e30
    update = rq.example_update(model, (wide, y), functional.mse_loss, clip_norm=1.0)
    rest = [n for n in range(30) if n != place]
    assert close(flat(update), slowly(model, x[rest], y[rest], 1.0, functional.mse_loss))


class Lengths(nn.Module):
    """A model that made-up numbers make fail: no sequence may have length 0."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.cell(packed)[1][0])


def test_a_model_that_needs_real_numbers_is_tried_on_the_clients():
    x, lengths = torch.randn(5, 4, 2), torch.tensor([4, 2, 3, 1, 4])
    update = rq.example_update(Lengths(), ((x, lengths), torch.arange(5) % 2), clip_norm=1.0)
    assert 0 < np.linalg.norm(flat(update)) <= 5


def test_more_examples_than_their_sums_rounding_allows_are_refused(monkeypatch):
    monkeypatch.setattr("randquant.local_training.client.MAX_EXAMPLES", 3)
    rows = torch.zeros(4, 1)
    with pytest.raises(ValueError, match="at most 3 examples of one client, got 4: rounding"):
        rq.example_update(nn.Linear(1, 1), (rows, rows), functional.mse_loss, clip_norm=1.0)

"""Opacus with this package's account: its figure, or an error before anything is released."""

import warnings

import pytest

pytest.importorskip("opacus")

import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

import randquant as rq
from randquant.integrations import opacus as adapter

DELTA = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore")  # Opacus' own, of generators and hooks


def private(data=400, batch=40, target=None, **options):
    """An engine, and what it makes of a small model, its optimizer and data."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(data, 3)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=batch, shuffle=True)
    engine = PrivacyEngine(accountant="randquant")
    arguments = {"module": model, "optimizer": optimizer, "data_loader": loader,
                 "max_grad_norm": 1.0, **options}  # fmt: skip
    if target is None:
        made = engine.make_private(noise_multiplier=1.0, **arguments)
    else:
        made = engine.make_private_with_epsilon(
            target_epsilon=target, target_delta=DELTA, epochs=3, **arguments
        )
    return engine, *made


def train(model, optimizer, loader, passes=1):
    for _ in range(passes):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def parameters(model):
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def test_a_run_is_accounted_for_as_it_was_drawn():
    engine, model, optimizer, loader = private()
    engine.accountant.batches_from(loader)
    before = parameters(model)
    train(model, optimizer, loader, passes=3)
    assert not torch.equal(before, parameters(model))
    assert engine.accountant.history == [(1.0, 0.1, 30)]
    steps = rq.GaussianSteps("zero_out", "example")
    steps.step(1.0, drawn="poisson", rate=0.1 + adapter.RATE_ERROR, times=30)
    assert engine.get_epsilon(DELTA) == steps.epsilon(DELTA)
    guarantee = engine.accountant.guarantee(DELTA)
    assert (guarantee.unit, guarantee.neighboring) == ("example", "zero_out")
    theirs = create_accountant("prv")
    theirs.history = engine.accountant.history
    assert engine.get_epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=0.012)


@pytest.mark.parametrize("stated", [0.05, 0.2])
def test_of_two_rates_the_larger_one_is_charged(stated):
    """Opacus states one with its account, and draws by that of the loader that is shown."""
    engine, model, optimizer, loader = private()
    engine.accountant.batches_from(loader)
    optimizer.attach_step_hook(engine.accountant.get_optimizer_hook_fn(stated))
    train(model, optimizer, loader)
    assert engine.accountant.history == [(1.0, max(stated, 0.1), 10)]


@pytest.mark.slow
def test_poisson_samplers_draw_no_more_often_than_is_charged():
    """They compare floats of 24 bits with the rate: the largest that is below it, counted."""
    for rate in (0.1, 1 / 3, 1 / 234, 2.0**-24 * 1.5):
        below = torch.arange(2**24 + 1, dtype=torch.float32) / 2**24 < rate
        assert int(below[:-1].sum()) / 2**24 <= rate + adapter.RATE_ERROR


@pytest.mark.slow
def test_a_target_is_met():
    engine, model, optimizer, loader = private(target=2.0)
    engine.accountant.batches_from(loader)
    train(model, optimizer, loader, passes=3)
    assert 1.9 < engine.get_epsilon(DELTA) <= 2.0


def refused(match, engine, model, optimizer, loader):
    before = parameters(model)
    with pytest.raises(ValueError, match=match):
        train(model, optimizer, loader)
    assert torch.equal(before, parameters(model))
    assert len(engine.accountant) == 0


def test_a_loader_that_is_not_shown_is_refused_at_the_first_step():
    refused("unknown loader", *private())


def test_a_loader_that_shuffles_is_refused():
    engine, model, optimizer, loader = private(poisson_sampling=False)
    with pytest.raises(ValueError, match="where data are shuffled an example is in one batch"):
        engine.accountant.batches_from(loader)
    refused("unknown loader", engine, model, optimizer, loader)


def test_accumulated_gradients_are_refused():
    engine, model, optimizer, loader = private()
    engine.accountant.batches_from(loader)
    model.allow_grad_accumulation()
    before = parameters(model)
    for _, (x, y) in zip(range(2), loader, strict=False):
        torch.nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(ValueError, match="one Poisson batch in a step, got 2 batches"):
        optimizer.step()
    assert torch.equal(before, parameters(model))


def test_a_batch_in_parts_is_one_step():
    engine, model, optimizer, loader = private()
    engine.accountant.batches_from(loader)
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=8, optimizer=optimizer
    ) as parts:
        train(model, optimizer, parts)
    assert engine.accountant.history == [(1.0, 0.1, 10)]


def test_adaptive_clipping_is_refused():
    adaptive = {
        "clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0, "min_clipbound": 0.1, "unclipped_num_std": 2.0,
    }  # fmt: skip
    engine, *made = private(**adaptive)
    engine.accountant.batches_from(made[-1])
    refused("second query", engine, *made)


def test_adaptive_ghost_clipping_is_refused():
    from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    data = TensorDataset(torch.randn(400, 3), torch.zeros(400, dtype=torch.long))
    engine = PrivacyEngineAdaptiveClipping(accountant="randquant")
    model, optimizer, criterion, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=80), noise_multiplier=1.0, max_grad_norm=1.0,
        grad_sample_mode="ghost", criterion=torch.nn.CrossEntropyLoss(),
    )  # fmt: skip
    engine.accountant.batches_from(loader)
    x, y = next(iter(loader))
    criterion(model(x), y).backward()
    before = parameters(model)
    with pytest.raises(ValueError, match="second query"):
        optimizer.step()
    assert torch.equal(before, parameters(model))


def test_ghost_and_per_layer_clipping_are_counted():
    engine, model, optimizer, criterion, loader = private(
        grad_sample_mode="ghost", criterion=torch.nn.CrossEntropyLoss()
    )
    engine.accountant.batches_from(loader)
    x, y = next(iter(loader))
    criterion(model(x), y).backward()
    optimizer.step()
    assert engine.accountant.history == [(1.0, 0.1, 1)]
    engine, model, optimizer, loader = private(clipping="per_layer", max_grad_norm=[1.0, 1.0])
    engine.accountant.batches_from(loader)
    train(model, optimizer, loader)
    assert engine.accountant.history == [(1.0, 0.1, 10)]


def test_noise_that_changes_and_a_checkpoint(tmp_path):
    engine, model, optimizer, loader = private()
    engine.accountant.batches_from(loader)
    train(model, optimizer, loader)
    optimizer.noise_multiplier = 2.0
    train(model, optimizer, loader)
    assert engine.accountant.history == [(1.0, 0.1, 10), (2.0, 0.1, 10)]
    engine.save_checkpoint(path=tmp_path / "run", module=model, optimizer=optimizer)
    again, model, optimizer, loader = private()
    again.load_checkpoint(path=tmp_path / "run", module=model, optimizer=optimizer)
    assert again.get_epsilon(DELTA) == engine.get_epsilon(DELTA)
    refused_now = again.accountant.history.copy()
    with warnings.catch_warnings(), pytest.raises(ValueError, match="unknown loader"):
        train(model, optimizer, loader)
    assert again.accountant.history == refused_now
    other = PrivacyEngine(accountant="rdp")
    with pytest.raises(ValueError, match="mechanism"):
        other.accountant.load_state_dict(again.accountant.state_dict())


def test_no_noise_has_no_epsilon():
    accountant = create_accountant("randquant")
    assert accountant.get_epsilon(DELTA) == 0
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    assert accountant.get_epsilon(DELTA) == float("inf")

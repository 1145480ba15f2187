"""Balanced accuracy and AUC beside scikit-learn's, and in a run's records, page and summary."""

import json

import numpy as np
import pytest
import torch
from by_name import train
from hypothesis import given
from hypothesis import strategies as st
from pages import Page
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import nn
from torch.nn import functional

from randquant._internal import to_json
from randquant.cli import train as command
from randquant.local_training import (
    MIN_IMBALANCE_RATIO,
    ByClass,
    Learner,
    auc,
    balanced_accuracy,
    make_problem,
)
from randquant.reports.notebook import display
from randquant.reports.run import page
from randquant.training import RunSummary, majority_share
from randquant.training.federated import Advice

LABELS = st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=1, max_size=40)
BINARY = functional.binary_cross_entropy_with_logits


@given(LABELS)
def test_auc_is_the_share_of_pairs_in_order_and_that_of_scikit_learn(pairs):
    positive = np.array([one for one, _ in pairs])
    scores = np.array([score for _, score in pairs]) / 7  # few values: many ties
    above, below = scores[positive], scores[~positive]
    if not len(above) or not len(below):
        assert auc(positive, scores) is None
        return
    gaps = above[:, None] - below[None, :]
    expected = ((gaps > 0).sum() + 0.5 * (gaps == 0).sum()) / gaps.size
    assert auc(positive, scores) == pytest.approx(expected, rel=1e-12, abs=0)
    assert auc(positive, scores) == pytest.approx(
        roc_auc_score(positive, scores), rel=1e-12, abs=1e-15
    )
    scores[0] = np.nan
    assert auc(positive, scores) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 39)), min_size=1, max_size=40))
def test_balanced_accuracy_is_that_of_scikit_learn_where_classes_are_imbalanced(drawn):
    targets, others = np.array(drawn).T
    predicted = targets[others % len(targets)]  # theirs warns of classes that do not occur
    counts = [count for count in np.bincount(targets) if count]
    found = balanced_accuracy(targets, predicted == targets)
    if max(counts) < MIN_IMBALANCE_RATIO * min(counts):
        assert found is None
    else:
        theirs = balanced_accuracy_score(targets, predicted)
        assert found == pytest.approx(theirs, rel=1e-12, abs=1e-15)


def rare(count, seed=0):
    """One example in five is positive, and hard to tell by its two features."""
    draws = np.random.default_rng(seed)
    y = np.arange(count) % 5 == 0
    x = draws.normal(0, 1, (count, 2)) + 0.7 * y[:, None]
    return torch.tensor(x).float(), torch.tensor(y)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_learner_measures_both_of_the_model_in_batches(outputs):
    (x, y), (seen, known) = rare(60), rare(1003, seed=1)
    classes = (lambda t: t.float()[:, None]) if outputs == 1 else (lambda t: t.long())
    options = {"loss": BINARY} if outputs == 1 else {}
    torch.manual_seed(2)
    problem = make_problem(
        nn.Linear(2, outputs), [(x, classes(y))], test=(seen, classes(known)), **options
    )
    found = Learner(problem).evaluate()
    with torch.no_grad():
        output = problem.model(seen).double()
    scores = (output[:, -1] - (output[:, 0] if outputs == 2 else 0)).numpy()
    assert found.auc == pytest.approx(roc_auc_score(known, scores), rel=1e-6, abs=0)
    assert found.balanced_accuracy == pytest.approx(
        balanced_accuracy_score(known, scores > 0), rel=1e-12, abs=0
    )
    assert found.accuracy == pytest.approx(((scores > 0) == known.numpy()).mean(), rel=1e-12, abs=0)
    of_client = Learner(problem).evaluate(0)  # sends its accuracy, and no other figure
    assert (of_client.balanced_accuracy, of_client.auc) == (None, None)


@pytest.mark.parametrize(
    ("classes", "targets"),
    [
        (3, torch.zeros(4, 2, dtype=torch.long)),  # a class at each place
        (3, torch.tensor([0, 0, 0, -1])),  # labels that a loss of somebody's own may ignore
        (3, torch.tensor([0, 0, 0, 2**40])),  # or counts
        (2, torch.zeros(4)),  # one class only
    ],
)
def test_where_they_do_not_apply_nothing_is_stated(classes, targets):
    found = ByClass(classes)
    assert found.measured() == (None, None)
    found.add(torch.zeros(len(targets), classes), targets, torch.zeros(targets.shape))
    assert found.measured() == (None, None)


def test_a_run_of_rare_positives_states_both_and_that_it_tells_nothing_apart(tmp_path):
    (x, y), test = rare(400), rare(200, seed=1)
    clients = [(x[k::40], y[k::40].long()) for k in range(40)]
    model = nn.Linear(2, 2)
    with torch.no_grad():  # so sure of one class that no example is of the other
        model.weight.copy_(torch.tensor([[0.0, 0.0], [0.1, 0.1]]))
        model.bias.copy_(torch.tensor([9.0, -9.0]))
    with pytest.warns(Advice, match="the model tells nothing apart"):
        run = train(
            model, clients, test=(test[0], test[1].long()), epsilon=0.5, rounds=10, seed=0,
            evaluate_every=1, folder=tmp_path / "run", progress=False,
        )  # fmt: skip
    summary = run.summary
    with torch.no_grad():
        output = run.model(test[0]).double()
    assert (run.accuracy, summary.balanced_accuracy) == (0.8, 0.5)
    assert 0 < summary.auc < 1
    assert summary.auc == pytest.approx(
        roc_auc_score(test[1], output[:, 1] - output[:, 0]), rel=1e-9, abs=0
    )
    assert [row.balanced_accuracy for row in run.history] == [0.5] * 10
    assert run.history[-1].auc == summary.auc
    assert RunSummary.from_json(json.loads(json.dumps(to_json(summary)))) == summary
    printed = command.finished_lines(run.folder, run.record)
    shown = f"balanced accuracy 0.5000, AUC {summary.auc:.4f}"
    assert printed[0].split(maxsplit=2)[2] == f"0.8000, {shown}"
    words = Page(page(run)).words
    for said in (
        "Balanced accuracy 0.5000: each class counts the same",
        f"AUC {summary.auc:.4f}: 0.5 is no better than chance",
        "Accuracy, AUC and loss are on test data that belong to no client",
        "the model tells nothing apart",
    ):
        assert said in words
    assert "balanced accuracy" in display(run)


def test_a_binary_model_is_compared_with_the_more_frequent_class_too():
    x, y = rare(100)
    tags = torch.stack([y, ~y], 1).float()
    for targets, share in ((y.float()[:, None], 0.8), (tags, None)):
        problem = make_problem(
            nn.Linear(2, targets.shape[1]), [(x, targets)], test=(x, targets), loss=BINARY
        )
        assert majority_share(problem) == share

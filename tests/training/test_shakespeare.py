"""Shakespeare's roles: which windows there are, who holds them, what is refused, what learns."""

import gzip
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import randquant as rq
from randquant.aggregation.baselines import ClippedSGD
from randquant.cli import main
from randquant.training import models, text
from randquant.training.data import datasets, shakespeare

SPEECHES = ["Who’s there? " * 40, "Nay, answer me—stand, and unfold yourself. " * 20]


def plain(texts):
    return ["".join(shakespeare.CHARACTERS[code] for code in row) for row in texts]


def role(speeches, number=0):
    return {"play": "Hamlet", "role": f"r{number}", "speeches": speeches}


@pytest.fixture
def folder(tmp_path):
    roles = [role(SPEECHES), role(["short"], 1), role(["b" * 200], 2)]
    (tmp_path / "roles.json.gz").write_bytes(gzip.compress(json.dumps(roles).encode()))
    return tmp_path


def test_each_character_is_predicted_once_from_those_before_it_in_its_role(folder):
    data = datasets.load("shakespeare", folder)
    written = "\n".join(SPEECHES).replace("’", "'").replace("—", "-")
    windows = len(written[1:]) // 80
    assert np.bincount(data.writers).tolist() == [windows - windows // 5, 1]
    assert np.bincount(data.test_writers).tolist() == [windows // 5, 1]
    own = [data.train_features[data.writers == 0], data.test_features[data.test_writers == 0]]
    assert "".join(plain(np.concatenate(own))) == written[: 80 * windows]
    own = [data.train_labels[data.writers == 0], data.test_labels[data.test_writers == 0]]
    assert "".join(plain(np.concatenate(own))) == written[1 : 80 * windows + 1]


def test_the_last_character_is_leafs_task_and_no_character_is_trained_and_tested(folder):
    data = datasets.load("shakespeare-last", folder)
    written = "\n".join(SPEECHES).replace("’", "'").replace("—", "-")
    own = data.train_features[data.writers == 0]
    assert plain(own) == [written[20 * k : 20 * k + 80] for k in range(len(own))]
    assert "".join(plain([data.train_labels[: len(own)]])) == written[80::20][: len(own)]
    count = (len(written) - 81) // 20 + 1
    tested = plain(data.test_features[data.test_writers == 0])
    starts = range(20 * (count - count // 5), 20 * count, 20)
    assert tested == [written[start : start + 80] for start in starts]
    assert 20 * (len(own) - 1) + 80 < starts[0] <= 20 * (len(own) - 1) + 100


def test_leafs_file_gives_the_text_it_was_cut_from(folder, tmp_path):
    written = plain([shakespeare.encoded("\n".join(SPEECHES))])[0]
    broken = written[:500], written[700:]  # LEAF's own subsamples have gaps
    pairs = [(t[k : k + 80], t[k + 80]) for t in broken for k in range(len(t) - 80)]
    inputs, targets = map(list, zip(*pairs, strict=True))
    content = {"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": inputs, "y": targets}}}
    leaf = tmp_path / "all_data"
    leaf.mkdir()
    (leaf / "all_data_0.json").write_text(json.dumps(content))
    data = datasets.load("shakespeare", leaf)
    found = plain(np.concatenate([data.train_features, data.test_features]))
    expected = [t[k : k + 80] for t in broken for k in range(0, len(t) - 80, 80)]
    assert found == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "JSON"),
        ("3", "a list of roles"),
        ('[{"role": "x"}]', "others as role 0"),
        ('[{"speeches": ["too short"]}]', "none of 1"),
        ('{"users": ["u"], "user_data": {"u": {"x": ["abc"], "y": []}}}', "as many strings y as x"),
        ('{"users": ["u"], "user_data": {"u": {"x": ["abc"], "y": ["d"]}}}', "80 characters"),
        ('{"users": [3]}', "users and user_data"),
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path, content, message):
    (tmp_path / "roles.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        shakespeare.load(tmp_path)


def test_a_cut_archive_and_a_missing_one_are_refused(folder):
    path = folder / "roles.json.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="to hold JSON"):
        shakespeare.load(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"roles\.json\.gz"):
        shakespeare.load(folder)
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        shakespeare.load(None)


def test_models_have_the_sizes_their_documentation_states():
    sizes = {
        name: sum(p.numel() for p in models.build(name, (80,), 80, 0).parameters())
        for name in ("lstm", "lstm-last", "transformer")
    }
    assert sizes == {"lstm": 819_920, "lstm-last": 819_920, "transformer": 115_536}
    with pytest.raises(ValueError, match="texts"):
        models.build("lstm", (1, 28, 28), 10, 0)


@pytest.mark.parametrize(
    "model", [text.CharacterLSTM(9, width=5), text.CharacterTransformer(9, 12, width=8)]
)
def test_a_prediction_does_not_look_at_what_follows(model):
    texts = torch.arange(24).reshape(2, 12) % 9
    changed = texts.clone()
    changed[:, 7:] = 8 - changed[:, 7:]
    one, other = (model.eval()(each).detach() for each in (texts, changed))
    assert one.shape == (2, 9, 12)
    assert torch.equal(one[..., :7], other[..., :7])
    assert not torch.allclose(one[..., 7:], other[..., 7:], rtol=0, atol=1e-4)


def test_a_run_prints_bits_per_character(folder, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = "train --dataset shakespeare --model transformer --partition natural --population 2"
    mechanism = "--mechanism clipped-sgd --cohort 2 --rounds 1 --batch 1 --seed 0"
    command = [*arguments.split(), *mechanism.split(), "--data-dir", str(folder)]
    assert main([*command, "--run", str(out)]) == 0
    loss = json.loads((out / "summary.json").read_text())["loss"]
    assert f", {loss / math.log(2):.3f} bits per character" in capsys.readouterr().out


def test_a_data_set_and_a_model_are_trained_by_name_each_role_a_client(folder):
    dataset = datasets.load("shakespeare", folder)
    run = rq.train(
        "transformer",
        dataset,
        rounds=1,
        local=rq.Local(batch=1),
        mechanism=ClippedSGD(clip_norm=1.0),
        seed=0,
    )
    assert run.config.task.population == int(dataset.writers.max()) + 1
    assert run.summary.accuracy is not None


def test_names_need_a_data_set_that_they_fit(folder):
    with pytest.raises(TypeError, match="names are for built-in data sets"):
        rq.train("transformer", [(np.zeros((3, 4), np.float32), np.zeros(3, np.int64))] * 3)
    with pytest.raises(ValueError, match="Expected a data set with writers"):
        rq.train("mlp", datasets.load("digits"))
    with pytest.raises(ValueError, match="cnn"):
        rq.train("cnn", datasets.load("shakespeare", folder))


def test_the_command_of_the_page_runs(folder, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "text.md").read_text()
    (command,) = re.findall(r"^randquant (train [^`]*)", page, re.MULTILINE)
    words = command.replace("\\\n", " ").replace("DATA_DIR", str(folder)).split()
    roles = str(len(np.unique(datasets.load("shakespeare", folder).writers)))
    for name, few in (("--population", roles), ("--cohort", roles), ("--rounds", "1")):
        words[words.index(name) + 1] = few
    assert main([*words, "--run", str(tmp_path / "run")]) == 0

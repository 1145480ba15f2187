"""Shakespeare's roles: which windows there are, who holds them, what is refused, what learns."""

import gzip
import json

import numpy as np
import pytest
import torch

from randquant_papers.data import shakespeare
from randquant_papers.text import models

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
    train, test = shakespeare.load(folder)
    written = "\n".join(SPEECHES).replace("’", "'").replace("—", "-")
    windows = len(written[1:]) // 80
    assert np.bincount(train.roles).tolist() == [windows - windows // 5, 1]
    assert np.bincount(test.roles).tolist() == [windows // 5, 1]
    inputs, targets = zip(train.by_role()[0], test.by_role()[0], strict=True)
    assert "".join(plain(np.concatenate(inputs))) == written[: 80 * windows]
    assert "".join(plain(np.concatenate(targets))) == written[1 : 80 * windows + 1]


def test_leafs_file_gives_the_text_it_was_cut_from(folder, tmp_path):
    written = plain([shakespeare.encoded("\n".join(SPEECHES))])[0]
    broken = written[:500], written[700:]  # LEAF's own subsamples have gaps
    pairs = [(t[k : k + 80], t[k + 80]) for t in broken for k in range(len(t) - 80)]
    inputs, targets = map(list, zip(*pairs, strict=True))
    content = {"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": inputs, "y": targets}}}
    leaf = tmp_path / "all_data"
    leaf.mkdir()
    (leaf / "all_data_0.json").write_text(json.dumps(content))
    found = plain(np.concatenate([each.inputs for each in shakespeare.load(leaf)]))
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
    with pytest.raises(FileNotFoundError, match="data_dir"):
        shakespeare.load(None)


def test_a_prediction_does_not_look_at_what_follows():
    model = models.CharacterTransformer(9, 12, width=8)
    texts = torch.arange(24).reshape(2, 12) % 9
    changed = texts.clone()
    changed[:, 7:] = 8 - changed[:, 7:]
    one, other = (model.eval()(each).detach() for each in (texts, changed))
    assert one.shape == (2, 9, 12)
    assert torch.equal(one[..., :7], other[..., :7])
    assert not torch.allclose(one[..., 7:], other[..., 7:], rtol=0, atol=1e-4)

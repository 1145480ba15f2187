"""FEMNIST from LEAF's files: what is read, who is tested, what is refused, who holds what."""

import json

import numpy as np
import pytest

from randquant.training.data import datasets
from randquant_papers.data import leaf, sets

sets.register()

WRITERS = 23


def written(writers=WRITERS, first=0):
    """A file of writers w0, w1, ...: writer k has 2 + k % 4 samples, all of brightness k / 100."""
    sizes = [2 + k % 4 for k in range(first, first + writers)]
    data = {
        f"w{first + k}": {"x": [[(first + k) / 100] * 784] * size, "y": list(range(size))}
        for k, size in enumerate(sizes)
    }
    return {"users": list(data), "num_samples": sizes, "user_data": data}


def write(folder, *contents):
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(contents):
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"all_data_{number}.json").write_text(text)
    return folder


@pytest.fixture
def data(tmp_path):
    return datasets.load("femnist", write(tmp_path, written(13), written(10, first=13)))


def test_every_sample_comes_back_once_with_its_writer(data):
    brightness = np.concatenate([data.train_features, data.test_features])[:, 0, 0, 0]
    found = np.bincount(np.rint(100 * brightness).astype(int))
    assert found.tolist() == [2 + k % 4 for k in range(WRITERS)]
    assert data.train_features.shape[1:] == (1, 28, 28)
    assert data.train_features.dtype == np.float32
    assert data.classes == 62
    assert len(data.clients) == WRITERS - 2
    for own in data.clients:
        assert len(np.unique(data.train_features[own])) == 1
        assert data.train_labels[own].tolist() == list(range(len(own)))


def test_a_tenth_of_the_writers_is_tested_and_none_of_them_is_trained_on(data):
    trained, tested = (
        set(np.unique(features).tolist()) for features in (data.train_features, data.test_features)
    )
    assert (len(trained), len(tested)) == (WRITERS - 2, 2)
    assert not trained & tested


@pytest.mark.parametrize("folder", [".", "femnist", "femnist/all_data", "all_data"])
def test_how_files_lie_does_not_matter(tmp_path, folder, data):
    parts = [written(3, first=first) for first in (20, 0, 3, 6, 9, 12, 15)] + [written(2, first=18)]
    write(tmp_path / "again" / folder, *parts)
    again = datasets.load("femnist", tmp_path / "again")
    assert np.array_equal(again.train_features, data.train_features)
    assert all(map(np.array_equal, again.clients, data.clients))


def test_clients_hold_what_one_writer_wrote(data):
    everyone = datasets.split(data, WRITERS - 2, "own")
    assert np.concatenate(everyone).tolist() == list(range(len(data.train_labels)))
    of = {int(samples[0]): samples for samples in everyone}
    drawn = [datasets.split(data, 5, "own", seed=seed) for seed in range(4)]
    for samples in drawn[1]:
        assert np.array_equal(samples, of[int(samples[0])])
    assert len({tuple(int(samples[0]) for samples in some) for some in drawn}) == 4  # of 20,349
    with pytest.raises(ValueError, match=r"population .* 21.*femnist comes with that many clients"):
        datasets.split(data, WRITERS - 1, "own")
    with pytest.raises(ValueError, match="come by client for partition own, got digits"):
        datasets.split(datasets.load("digits"), 5, "own")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"all_data_\*.json for femnist in .*femnist, found"
    ):
        datasets.load("femnist", tmp_path)


def changed(**fields):
    return {**written(3), **fields}


def with_samples(x=None, y=None):
    content = written(3)
    own = content["user_data"]["w1"]
    own["x"], own["y"] = own["x"] if x is None else x, own["y"] if y is None else y
    return content


ROW = [0.5] * 784
HOSTILE = {
    "no JSON": "{",
    "deep": "[" * 200_000,
    "a list": [],
    "no users": changed(users=None),
    "nobody": changed(users=[], num_samples=[], user_data={}),
    "a stranger": changed(users=["w0", "w1", "x"]),
    "twice": changed(users=["w0", "w1", "w1"]),
    "lists for names": changed(users=[["w0"], "w1", "w2"]),
    "fewer sizes": changed(num_samples=[2, 3]),
    "other sizes": changed(num_samples=[2, 3, 5]),
    "a word for a size": changed(num_samples=[2, "3", 4]),
    "data are words": changed(user_data={"w0": "x", "w1": "y", "w2": "z"}),
    "words": with_samples(x=[["a"] * 784] * 3),
    "ragged": with_samples(x=[ROW, ROW, ROW[:-1]]),
    "short rows": with_samples(x=[ROW[:-1]] * 3),
    "fewer rows": with_samples(x=[ROW] * 2),
    "too bright": with_samples(x=[ROW, ROW, [1.5] * 784]),
    "not a number": with_samples(x=[ROW, ROW, [float("nan")] * 784]),
    "beyond floats": with_samples(x=[ROW, ROW, [1e300] * 784]),
    "a far label": with_samples(y=[0, 1, 62]),
    "a negative label": with_samples(y=[0, 1, -1]),
    "half a label": with_samples(y=[0, 1, 0.5]),
    "a huge label": with_samples(y=[0, 1, 2**70]),
    "truth": with_samples(y=[True, False, True]),
    "nested labels": with_samples(y=[[0], [1], [2]]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_files_get_one_sentence(tmp_path, name):
    with pytest.raises(ValueError, match=r"^Expected \S+all_data_0\.json to hold .*\.$") as caught:
        datasets.load("femnist", write(tmp_path, HOSTILE[name]))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_writer_may_not_come_twice_and_must_not_be_alone(tmp_path):
    with pytest.raises(ValueError, match="every writer once, got writer 'w2' again"):
        datasets.load("femnist", write(tmp_path, written(3), written(2, first=2)))
    with pytest.raises(ValueError, match="at least 2 writers"):
        datasets.load("femnist", write(tmp_path / "b", written(1)))


def test_a_large_file_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(leaf, "LARGEST", 1000)
    with pytest.raises(ValueError, match="at most 1,000 bytes"):
        datasets.load("femnist", write(tmp_path, written(2)))

"""Data sets of the papers from files that are made here: what is read, and what is refused."""

import gzip
import json

import numpy as np
import pytest
from small_mnist import idx

from randquant_papers.data import datasets, leaf, sets


def write(folder, files):
    """Write files by their names, which may have folders in them."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


# CIFAR-10 and CIFAR-100 in their binary versions.


def records(count, seed=0, labels=2):
    made = np.random.default_rng(seed).integers(256, size=(count, labels + 3072), dtype=np.uint8)
    made[:, 0], made[:, labels - 1] = made[:, 0] % 10, made[:, labels - 1] % (10 * labels)
    return made


CIFAR_100 = {
    "cifar-100-binary/train.bin": records(7).tobytes(),
    "cifar-100-binary/test.bin": records(3, seed=1).tobytes(),
}
BATCHES = records(12, labels=1)
CIFAR_10 = {
    **{
        f"cifar-10-batches-bin/data_batch_{k + 1}.bin": BATCHES[2 * k : 2 * k + 2].tobytes()
        for k in range(5)
    },
    "cifar-10-batches-bin/test_batch.bin": BATCHES[10:].tobytes(),
}


@pytest.mark.parametrize("where", ["", "cifar-100-binary"])
def test_images_and_fine_labels_of_cifar_100_are_read(tmp_path, where):
    found = sets.load("cifar-100", write(tmp_path, CIFAR_100) / where)
    made = records(7)
    assert found.classes == 100
    assert found.train_features.shape == (7, 3, 32, 32)
    assert found.train_features.dtype == np.float32
    assert np.array_equal(found.train_labels, made[:, 1])
    # Red, green, blue, each row by row.
    assert found.train_features[2, 1, 5, 9] == np.float32(made[2, 2 + 1024 + 5 * 32 + 9]) / 255
    assert len(found.test_labels) == 3


def test_batches_of_cifar_10_are_read_in_order(tmp_path):
    found = sets.load("cifar-10", write(tmp_path, CIFAR_10))
    assert (found.classes, found.train_features.shape) == (10, (10, 3, 32, 32))
    assert np.array_equal(found.train_labels, BATCHES[:10, 0])
    assert np.array_equal(found.test_labels, BATCHES[10:, 0])
    value = BATCHES[3, 1 + 2048 + 31 * 32 + 30]
    assert found.train_features[3, 2, 31, 30] == np.float32(value) / 255


# EMNIST ByClass.

NAMES = tuple(
    f"emnist-byclass-{split}-{kind}"
    for split in ("train", "test")
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
EMNIST = dict(zip(NAMES, [idx(IMAGES), idx(np.array([0, 61, 35]))] * 2, strict=True))
ZIPPED = {f"{name}.gz": gzip.compress(data) for name, data in EMNIST.items()}


@pytest.mark.parametrize("files", [EMNIST, ZIPPED])
@pytest.mark.parametrize("where", [".", "emnist"])
def test_images_of_emnist_are_turned_upright(tmp_path, where, files):
    write(tmp_path / where, files)
    data = sets.load("emnist", tmp_path)
    assert (data.name, data.classes) == ("emnist", 62)
    for features, labels in (
        (data.train_features, data.train_labels),
        (data.test_features, data.test_labels),
    ):
        assert labels.tolist() == [0, 61, 35]
        assert (features.dtype, features.flags.c_contiguous) == (np.float32, True)
        assert np.array_equal(features[:, 0] * 255, IMAGES.transpose(0, 2, 1))


# FEMNIST from LEAF's files.

WRITERS = 23


def written(writers=WRITERS, first=0):
    """A file of writers w0, w1, ...: writer k has 2 + k % 4 samples, all of brightness k / 100."""
    sizes = [2 + k % 4 for k in range(first, first + writers)]
    data = {
        f"w{first + k}": {"x": [[(first + k) / 100] * 784] * size, "y": list(range(size))}
        for k, size in enumerate(sizes)
    }
    return {"users": list(data), "num_samples": sizes, "user_data": data}


def all_data(*contents):
    """LEAF's files, of these contents."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in contents]
    return {f"all_data_{number}.json": text.encode() for number, text in enumerate(texts)}


FEMNIST = all_data(written(13), written(10, first=13))


@pytest.fixture
def data(tmp_path):
    return sets.load("femnist", write(tmp_path, FEMNIST))


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
    write(tmp_path / "again" / folder, all_data(*parts))
    again = sets.load("femnist", tmp_path / "again")
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
        datasets.split(sets.load("digits"), 5, "own")


# What is refused.


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

CUT, BYTES = "to hold images of 3074 bytes each", (records(3).tobytes() * 2)
HOLDS = r"^Expected \S+all_data_0\.json to hold "
TEST = "cifar-100-binary/test.bin"
BEYOND = records(3)
BEYOND[1, 1] = 100
EMNIST_DAMAGE = {  # read as MNIST is, whose damage is in `test_datasets.py`
    "cut short": {NAMES[0]: idx(IMAGES)[:-1]},
    "a label beyond": {NAMES[3]: idx(np.array([0, 62, 2]))},
}
TWICE = all_data(written(3), written(2, first=2))
DAMAGED = {
    **{f"{n} bytes": ("cifar-100", {TEST: BYTES[:n]}, CUT) for n in (0, 1, 3073, 3075)},
    "a class beyond": ("cifar-100", {TEST: BEYOND.tobytes()}, "labels from 0 to 99"),
    **{name: ("emnist", files, "EMNIST ByClass") for name, files in EMNIST_DAMAGE.items()},
    **{name: ("femnist", all_data(each), HOLDS) for name, each in HOSTILE.items()},
    "a writer twice": ("femnist", TWICE, "every writer once, got writer 'w2' again"),
    "a writer alone": ("femnist", all_data(written(1)), "at least 2 writers"),
}
FILES = {"cifar-100": CIFAR_100, "cifar-10": CIFAR_10, "emnist": EMNIST, "femnist": {}}


@pytest.mark.parametrize(("name", "damage", "sentence"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_get_one_sentence(tmp_path, name, damage, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        sets.load(name, write(tmp_path, FILES[name] | damage))
    said = str(caught.value)
    assert said.startswith("Expected ")
    assert said.endswith(".")
    assert "\n" not in said
    assert len(said) < 400


def test_what_cannot_be_unpacked_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="to be readable"):
        sets.load("emnist", write(tmp_path, {**ZIPPED, f"{NAMES[0]}.gz": b"garbage"}))


def test_a_large_file_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(leaf, "LARGEST", 1000)
    with pytest.raises(ValueError, match="at most 1,000 bytes"):
        sets.load("femnist", write(tmp_path, FEMNIST))


@pytest.mark.parametrize(
    ("name", "absent", "sentence"),
    [
        ("cifar-100", "cifar-100-binary/test.bin", r"train\.bin and test\.bin"),
        (
            "cifar-10",
            "cifar-10-batches-bin/data_batch_4.bin",
            r"data_batch_1\.bin to 5 and test_batch\.bin",
        ),
        ("emnist", NAMES[2], f"{NAMES[2]}.*for emnist"),
        ("femnist", None, r"all_data_\*.json for femnist in .*femnist, found"),
    ],
)
def test_missing_files_are_named(tmp_path, name, absent, sentence):
    files = {file: data for file, data in FILES[name].items() if file != absent}
    with pytest.raises(FileNotFoundError, match=sentence):
        sets.load(name, write(tmp_path, files))


def test_without_a_folder_the_option_is_named():
    with pytest.raises(FileNotFoundError, match=r"for emnist, got none: give it with --data-dir"):
        sets.load("emnist")

"""CIFAR-10 and CIFAR-100 from files of their binary versions, made here."""

import numpy as np
import pytest

from randquant.training.data import datasets
from randquant_papers.data import sets

sets.register()


def records(count, seed=0, fine=100):
    rng = np.random.default_rng(seed)
    made = rng.integers(256, size=(count, 3074), dtype=np.uint8)
    made[:, 0], made[:, 1] = rng.integers(20, size=count), rng.integers(fine, size=count)
    return made


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "cifar-100-binary"
    inside.mkdir()
    records(7).tofile(inside / "train.bin")
    records(3, seed=1).tofile(inside / "test.bin")
    return tmp_path


@pytest.mark.parametrize("where", ["", "cifar-100-binary"])
def test_images_and_fine_labels_are_read(folder, where):
    found = datasets.load("cifar-100", folder / where)
    made = records(7)
    assert found.classes == 100
    assert found.train_features.shape == (7, 3, 32, 32)
    assert found.train_features.dtype == np.float32
    assert np.array_equal(found.train_labels, made[:, 1])
    # Red, green, blue, each row by row.
    assert found.train_features[2, 1, 5, 9] == np.float32(made[2, 2 + 1024 + 5 * 32 + 9]) / 255
    assert len(found.test_labels) == 3


@pytest.mark.parametrize("cut", [0, 1, 3073, 3075])
def test_a_file_that_is_no_whole_number_of_images(folder, cut):
    path = folder / "cifar-100-binary" / "test.bin"
    path.write_bytes((path.read_bytes() * 2)[:cut])
    with pytest.raises(ValueError, match="to hold images of 3074 bytes each"):
        datasets.load("cifar-100", folder)


def test_labels_beyond_the_classes(folder):
    made = records(3)
    made[1, 1] = 100
    made.tofile(folder / "cifar-100-binary" / "test.bin")
    with pytest.raises(ValueError, match="labels from 0 to 99"):
        datasets.load("cifar-100", folder)


def test_missing_files_are_named(folder):
    (folder / "cifar-100-binary" / "test.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"train\.bin and test\.bin"):
        datasets.load("cifar-100", folder)


def test_batches_of_cifar_10_are_read_in_order(tmp_path):
    made = np.random.default_rng(0).integers(256, size=(12, 3073), dtype=np.uint8)
    made[:, 0] %= 10
    inside = tmp_path / "cifar-10-batches-bin"
    inside.mkdir()
    for number in range(5):
        made[2 * number : 2 * number + 2].tofile(inside / f"data_batch_{number + 1}.bin")
    made[10:].tofile(inside / "test_batch.bin")
    found = datasets.load("cifar-10", tmp_path)
    assert (found.classes, found.train_features.shape) == (10, (10, 3, 32, 32))
    assert np.array_equal(found.train_labels, made[:10, 0])
    assert np.array_equal(found.test_labels, made[10:, 0])
    assert found.train_features[3, 2, 31, 30] == np.float32(made[3, 1 + 2048 + 31 * 32 + 30]) / 255
    (inside / "data_batch_4.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_1\.bin to 5 and test_batch\.bin"):
        datasets.load("cifar-10", tmp_path)

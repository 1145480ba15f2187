"""EMNIST from IDX files, made here: what is read, turned upright and refused."""

import gzip
import struct

import numpy as np
import pytest

from randquant.training import load_dataset
from randquant_papers.data import sets

sets.register()

FILES = tuple(
    f"emnist-byclass-{split}-{kind}"
    for split in ("train", "test")
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)


def idx(array):
    header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write(folder, changed=None, suffix=""):
    """Files of three images, some of them changed."""
    content = dict(zip(FILES, [idx(IMAGES), idx(np.array([0, 61, 35]))] * 2, strict=True))
    folder.mkdir(exist_ok=True)
    for name, data in (content | (changed or {})).items():
        (folder / (name + suffix)).write_bytes(gzip.compress(data) if suffix else data)
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("where", [".", "emnist"])
def test_images_are_turned_upright(tmp_path, where, suffix):
    write(tmp_path / where, suffix=suffix)
    data = load_dataset("emnist", tmp_path)
    assert (data.name, data.classes) == ("emnist", 62)
    for features, labels in (
        (data.train_features, data.train_labels),
        (data.test_features, data.test_labels),
    ):
        assert labels.tolist() == [0, 61, 35]
        assert (features.dtype, features.flags.c_contiguous) == (np.float32, True)
        assert np.array_equal(features[:, 0] * 255, IMAGES.transpose(0, 2, 1))


DAMAGE = {
    "cut short": (FILES[0], idx(IMAGES)[:-1]),
    "longer": (FILES[2], idx(IMAGES) + b"\0"),
    "empty": (FILES[1], b""),
    "none": (FILES[1], idx(np.zeros(0))),
    "labels as images": (FILES[0], idx(np.arange(3))),
    "another size": (FILES[0], idx(np.zeros((3, 32, 32)))),
    "fewer labels": (FILES[1], idx(np.arange(2))),
    "a label beyond": (FILES[3], idx(np.array([0, 62, 2]))),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_a_value_error(tmp_path, name):
    file, content = DAMAGE[name]
    with pytest.raises(ValueError, match=r"Expected .* EMNIST ByClass"):
        load_dataset("emnist", write(tmp_path, {file: content}))


def test_what_cannot_be_unpacked_is_a_value_error(tmp_path):
    (write(tmp_path, suffix=".gz") / f"{FILES[0]}.gz").write_bytes(b"garbage")
    with pytest.raises(ValueError, match="to be readable"):
        load_dataset("emnist", tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"for emnist, got none: give it with --data-dir"):
        load_dataset("emnist")
    (write(tmp_path) / FILES[2]).unlink()
    with pytest.raises(FileNotFoundError, match=f"{FILES[2]}.*for emnist"):
        load_dataset("emnist", tmp_path)

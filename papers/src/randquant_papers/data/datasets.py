"""Real data by client: load a data set and partition it over clients.

Nothing is downloaded: `digits` and `breast-cancer` come with scikit-learn, the others are read from
files in a folder the caller names. `randquant_papers.data.sets` has more.
"""

from __future__ import annotations

import functools
import gzip
import math
import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from randquant import Key

# IDX files, the format of the MNIST data sets: every byte is checked on reading.
#
# Files are untrusted: no memory is allocated because a header asks for it, and every kind of damage
# raises one clear error.

MAX_ITEMS = 1_000_000
"""Most items that a file may hold: the real ones have 60,000 and 10,000."""

IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
"""The kinds of file: how their names end."""

_MAGIC = {IMAGES: 0x00000803, LABELS: 0x00000801}
_CHUNK = 1 << 20


def read(path: Path, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read one file of unsigned bytes, plain or gzip'd.

    Args:
        path: the file; compressed if its name ends in .gz.
        kind: IMAGES or LABELS.
        shape: shape of one item.

    Returns:
        (count, *shape) uint8.

    Guarantees:
        A file shorter or longer than its header states is refused before an array is allocated.

    Raises:
        ValueError: the file is damaged or of another kind (see `damaged`).
    """
    try:
        with _opened(path) as stream:
            header = _read_at_most(stream, 8 + 4 * len(shape))
            count = _checked_count(path, header, kind, shape)
            size = count * math.prod(shape)
            # One more byte shows whether data follow, and makes gzip verify its checksum.
            payload = _read_at_most(stream, size + 1)
    except (OSError, EOFError, zlib.error) as error:
        advice = "check its permissions or download it again"
        raise damaged(path, "a readable file", f"'{error}'", advice) from error
    if len(payload) != size:
        got = f"only {len(payload)}" if len(payload) < size else "more"
        raise damaged(path, f"{size} bytes after the header", got)
    return np.frombuffer(payload, np.uint8).reshape(count, *shape)


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _read_at_most(stream: BinaryIO, size: int) -> bytearray:
    """Return `size` bytes, or fewer at the end: memory grows with the data, not with the header."""
    payload = bytearray()
    while chunk := stream.read(min(_CHUNK, size - len(payload))):
        payload += chunk
    return payload


def _checked_count(path: Path, header: bytearray, kind: str, shape: tuple[int, ...]) -> int:
    """Return the number of items in the header, after checking it against `kind` and `shape`."""
    length = 8 + 4 * len(shape)
    if len(header) != length:
        raise damaged(path, f"a header of {length} bytes", f"only {len(header)}")
    magic, count, *dimensions = (int(number) for number in np.frombuffer(header, ">u4"))
    if magic != _MAGIC[kind]:
        expected = f"magic number 0x{_MAGIC[kind]:08x} ({kind})"
        raise damaged(path, expected, f"0x{magic:08x}", "check that the file is what its name says")
    if tuple(dimensions) != shape:
        expected, got = ("x".join(map(str, sides)) for sides in (shape, dimensions))
        raise damaged(path, f"images of {expected}", got, "only this size is read")
    if not 1 <= count <= MAX_ITEMS:
        raise damaged(path, f"from 1 to {MAX_ITEMS} items", count)
    return count


def damaged(
    path: Path, expected: str, got: object, advice: str = "download the file again"
) -> ValueError:
    """Return an error that names the file, what was expected, what was found and what to do."""
    return ValueError(f"Expected {expected} in {path}, got {got}: {advice}.")


PARTITIONS = ("iid", "shards", "dirichlet")
"""How to partition by labels, see `partition`."""

_SHAPE = (28, 28)


_CLASSES = 10

_FOLDERS = {"mnist": ("mnist", "mnist-10k"), "fashion-mnist": ("fashion-mnist",)}
"""The usual folder names of each MNIST kind."""

STANDARDIZING = 10
"""One training example of breast-cancer in so many standardises the others; it is in no Dataset."""

DATASETS = ("digits", "breast-cancer", *_FOLDERS)
"""The names that `load` accepts."""

OWN = "own"
"""The partition over the clients that data come with."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Training and test samples of one data set; the arrays are C-contiguous and writable.

    Attributes:
        name: of the data set.
        train_features: (N, *shape) float32; shape is (1, 28, 28) for the MNIST kinds and
            (1, 8, 8) for digits, all within [0, 1], and (30,) for breast-cancer.
        train_labels: (N,) int64, from 0 to classes - 1.
        test_features: (M, *shape) float32.
        test_labels: (M,) int64.
        classes: how many classes the set defines.
        clients: each client's training sample indices, int64, ascending, where the data come by
            client; None where they do not.
    """

    name: str
    train_features: np.ndarray
    train_labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    classes: int
    clients: Sequence[np.ndarray] | None = None

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, train={len(self.train_labels)}, "
            f"test={len(self.test_labels)}, shape={self.train_features.shape[1:]}, "
            f"classes={self.classes})"
        )


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Load a data set by name, with its fixed training and test split.

    `digits` and `breast-cancer` ignore `data_dir`. Their split is scikit-learn's
    `train_test_split(test_size=0.2, stratify=labels, random_state=0)`, whatever the run's seed.
    Digits are divided by 16. Breast-cancer is standardised by one training example in ten,
    drawn by a fixed rule that depends on nothing but their number; these are not in the Dataset.

    `mnist` and `fashion-mnist` are read from IDX files, plain or with .gz, in `data_dir` or in the
    folder of that name within it (for mnist also mnist-10k); the first folder that holds all four
    files is used. Pixels are divided by 255.

    Args:
        name: one of DATASETS.
        data_dir: the folder of the files, `--data-dir` on the command line.

    Returns:
        A Dataset; it has as many samples as the files hold.

    Guarantees:
        The same files give the same arrays; no global random state is read or changed.
        No example of the Dataset has an influence on another's features.
        Files shorter or longer than their headers state are refused before arrays are allocated.

    Raises:
        FileNotFoundError: IDX files are missing, or data_dir is not given.
        ValueError: the name is unknown, or a file is damaged or of another kind.

    References:
        LeCun et al. 1998 (MNIST and the IDX format); Xiao et al. 2017 (Fashion-MNIST).

    Example:
        >>> load("digits")
        Dataset('digits', train=1437, test=360, shape=(1, 8, 8), classes=10)
    """
    choice("dataset", name, DATASETS)
    if name in _FOLDERS:
        return _from_files(name, data_dir)
    return _bundled(name)


def choice(name: str, value: Any, options: Collection[str]) -> str:
    """Return a value that is one of some options; ValueError for another."""
    if value not in options:
        raise ValueError(f"Expected {name} to be one of {', '.join(options)}; got {value!r}.")
    return value


def _whole(name: str, value: Any, low: int, high: float = math.inf, why: str = "") -> int:
    """Return a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"Expected {name} to be a whole number, got {value!r}.")
    if not low <= value <= high:
        most = "" if math.isinf(high) else f" and <= {high}"
        reason = f": {why}" if why else ""
        raise ValueError(f"Expected {name} >= {low}{most}, got {name}={value}{reason}.")
    return int(value)


def split(
    dataset: Dataset, population: int, how: str, *, concentration: float = 0.3, seed: int = 0
) -> list[np.ndarray]:
    """Split a data set's training samples over clients.

    Args:
        dataset: the data.
        population: how many clients.
        how: one of PARTITIONS, as in `partition`, or `own`: by the clients that the data come
            with. If these are more, `population` of them are drawn at random, and the samples of
            the others are not used.
        concentration, seed: as for `partition`.

    Returns:
        `population` nonempty arrays of sample indices, int64, ascending.

    Raises:
        ValueError, TypeError: as `partition`, or the data come with too few clients, or none.
    """
    if how != OWN:
        choice("partition", how, (*PARTITIONS, OWN))
        options = {"concentration": concentration, "seed": seed}
        return partition(dataset.train_labels, population, how, **options)
    if dataset.clients is None:
        raise ValueError(
            f"Expected data that come by client for partition own, got {dataset.name}: take "
            "another partition."
        )
    count, why = len(dataset.clients), f"{dataset.name} comes with that many clients"
    population = _whole("population", population, 1, count, why)
    chosen = np.sort(_generator(seed).permutation(count)[:population])
    return [dataset.clients[client] for client in chosen]


def partition(
    labels: np.ndarray, population: int, how: str, *, concentration: float = 0.3, seed: int = 0
) -> list[np.ndarray]:
    """Partition samples over clients.

    - `iid`: a random split; sizes differ by at most one.
    - `shards`: the samples, sorted by label, are cut into 2·population shards whose sizes differ
      by at most one; every client gets two random shards, and so few labels.
    - `dirichlet`: sizes differ by at most one, as in Hsu et al. Every client draws class
      proportions from Dir(concentration · C · p), where p are the shares of the C classes in
      `labels`; with balanced classes that is the usual symmetric Dir(concentration), and Hsu's
      alpha is concentration · C. Then all clients draw the classes of their samples at once. If
      more samples of a class are requested than it has, a random part of the requests is served.
      The others are drawn again, with proportions renormalised over the classes that have samples
      left (a client with no such class draws in proportion to the samples left), until every
      sample has a client.

    Args:
        labels: (N,) integers.
        population: how many clients, from 1 to N (to N/2 for shards).
        how: one of PARTITIONS.
        concentration: dirichlet only, from 1e-6 (about one class a client) to 1e6 (nearly iid).
        seed: whole number >= 0; for simulation only, it protects nothing.

    Returns:
        `population` arrays of sample indices, int64, ascending.

    Guarantees:
        Every sample belongs to exactly one client.
        Every client holds at least one sample.
        The same seed gives the same partition (with the same NumPy version), and the global
        random state is neither read nor changed.
        Shards: the numbers of different labels per client sum to at most 2·population + C - 1.

    Raises:
        TypeError: labels, population or seed are not whole numbers.
        ValueError: labels are not one row, there are too few samples for the population, `how`
            is unknown, or concentration is out of range.

    References:
        McMahan et al. 2017, section 3 (shards); Hsu, Qi and Brown 2019, section 3 (dirichlet).

    Example:
        >>> partition(np.array([0, 1, 0, 1]), population=2, how="shards")
        [array([1, 2]), array([0, 3])]
    """
    labels = _checked_labels(labels)
    choice("partition", how, PARTITIONS)
    if not 1e-6 <= concentration <= 1e6:
        raise ValueError(
            f"Expected concentration >= 1e-06 and <= 1e6, got concentration={concentration}: 1e-6 "
            "gives about one class per client, 1e6 is nearly iid."
        )
    least = 2 if how == "shards" else 1
    why = f"with {len(labels)} samples every client must get at least {least}"
    population = _whole("population", population, 1, len(labels) // least, why)
    generator = _generator(seed)
    if how == "iid":
        owners = generator.permutation(np.arange(len(labels)) % population)
    elif how == "shards":
        owners = _by_shards(labels, population, generator)
    else:
        owners = _by_dirichlet(labels, population, concentration, generator)
    # A stable sort by owner leaves each client's samples in ascending order.
    order = np.argsort(owners, kind="stable").astype(np.int64, copy=False)
    return np.split(order, np.cumsum(np.bincount(owners))[:-1])


def _checked_labels(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"Expected labels to be integers, got {labels.dtype}: pass class numbers.")
    if labels.ndim != 1 or not labels.size:
        raise ValueError(
            f"Expected labels of shape (N,) with N >= 1, got {labels.shape}: one label per sample."
        )
    return labels


def _generator(seed: int) -> np.random.Generator:
    # The purpose is part of the key: no other use of the same seed gets the same numbers.
    purpose = int.from_bytes(b"partition")
    sequence = np.random.SeedSequence(_whole("seed", seed, 0), spawn_key=(purpose,))
    return np.random.Generator(np.random.Philox(sequence))


def _by_shards(labels: np.ndarray, population: int, generator: np.random.Generator) -> np.ndarray:
    """Return the owner of every sample: (N,) integers."""
    shards = 2 * population
    owner_of_shard = generator.permutation(np.arange(shards) % population)
    shard = np.arange(len(labels)) * shards // len(labels)
    owners = np.empty(len(labels), np.int64)
    owners[np.argsort(labels, kind="stable")] = owner_of_shard[shard]
    return owners


def _by_dirichlet(
    labels: np.ndarray, population: int, concentration: float, generator: np.random.Generator
) -> np.ndarray:
    """Return the owner of every sample: (N,) integers."""
    classes = np.unique(labels, return_inverse=True)[1]
    held = np.bincount(classes)
    proportions = generator.dirichlet(
        concentration * len(held) * held / len(labels), size=population
    )
    sizes = np.bincount(np.arange(len(labels)) % population)
    counts = _class_counts(sizes, held, proportions, generator)
    owners = np.empty(len(labels), np.int64)
    for index, taken in enumerate(counts.T):
        members = generator.permutation(np.flatnonzero(classes == index))
        owners[members] = np.repeat(np.arange(population), taken)
    return owners


def _class_counts(
    sizes: np.ndarray, held: np.ndarray, proportions: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Return (population, C) counts whose rows sum to `sizes` and whose columns sum to `held`."""
    counts = np.zeros(proportions.shape, np.int64)
    missing, left = sizes, held
    # Only a class that is used up leaves requests open: there are at most C + 1 passes.
    while missing.any():
        drawn = generator.multinomial(missing, _renormalised(proportions, left))
        for index in np.flatnonzero(drawn.sum(axis=0) > left):
            drawn[:, index] = generator.multivariate_hypergeometric(drawn[:, index], left[index])
        counts += drawn
        missing = missing - drawn.sum(axis=1)
        left = left - drawn.sum(axis=0)
    return counts


def _renormalised(proportions: np.ndarray, left: np.ndarray) -> np.ndarray:
    open_proportions = np.where(left > 0, proportions, 0.0)
    total = open_proportions.sum(axis=1, keepdims=True)
    by_left = np.where(total > 0, open_proportions, left)
    return by_left / by_left.sum(axis=1, keepdims=True)


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Read scikit-learn's digits, which takes longer than a short run; nobody changes them."""
    from sklearn import datasets

    return cast(tuple[np.ndarray, np.ndarray], datasets.load_digits(return_X_y=True))


def _bundled(name: str) -> Dataset:
    from sklearn import datasets, model_selection

    read = datasets.load_breast_cancer(return_X_y=True) if name != "digits" else _digits()
    features, labels = cast(tuple[np.ndarray, np.ndarray], read)
    split = model_selection.train_test_split(
        features, labels.astype(np.int64), test_size=0.2, stratify=labels, random_state=0
    )
    train, test, train_labels, test_labels = cast(list[np.ndarray], split)
    if name == "digits":
        train, test = (part.reshape(-1, 1, 8, 8) / 16 for part in (train, test))
    else:
        apart = _standardizing(len(train))
        mean, deviation = train[apart].mean(axis=0), train[apart].std(axis=0)
        train, test = ((part - mean) / deviation for part in (train, test))
        train, train_labels = (np.delete(part, apart, axis=0) for part in (train, train_labels))
    train, test = train.astype(np.float32), test.astype(np.float32)
    return Dataset(name, train, train_labels, test, test_labels, len(np.unique(labels)))


def _standardizing(count: int) -> np.ndarray:
    """Indices of the examples that standardise the others; int64, increasing."""
    order = Key.from_seed(0).fold_in("public examples").words(count).argsort(kind="stable")
    return np.sort(order[: -(-count // STANDARDIZING)])


def _from_files(name: str, data_dir: str | Path | None) -> Dataset:
    train_images, train_labels, test_images, test_labels = _find(name, data_dir)
    train = _read_split(train_images, train_labels)
    test = _read_split(test_images, test_labels)
    return Dataset(name, *train, *test, _CLASSES)


def _find(name: str, data_dir: str | Path | None) -> list[Path]:
    """Return the four files from the first folder that has all of them."""
    wanted = [f"{split}-{kind}" for split in ("train", "t10k") for kind in (IMAGES, LABELS)]
    if data_dir is None:
        raise FileNotFoundError(
            f"Expected a folder with {', '.join(wanted)} (plain or .gz) for {name}, got none: "
            "give it with --data-dir (data_dir in Python)."
        )
    folders = [Path(data_dir), *(Path(data_dir, folder) for folder in _FOLDERS[name])]
    found = [[path for file in wanted for path in _present(folder, file)] for folder in folders]
    fullest = max(range(len(folders)), key=lambda index: len(found[index]))
    if len(found[fullest]) == len(wanted):
        return found[fullest]
    missing = [file for file in wanted if not _present(folders[fullest], file)]
    others = ", ".join(str(folder) for folder in folders if folder != folders[fullest])
    raise FileNotFoundError(
        f"Expected {', '.join(missing)} (plain or .gz) in {folders[fullest]} for {name}, found "
        f"no such file (also looked in {others}): put the files there or give another --data-dir."
    )


def _present(folder: Path, file: str) -> list[Path]:
    """Return [the plain file], or else [the .gz], or an empty list if neither exists."""
    paths = [folder / file, folder / f"{file}.gz"]
    return [path for path in paths if os.path.isfile(path)][:1]


def _read_split(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return (N, 1, 28, 28) float32 within [0, 1] and (N,) int64."""
    labels = read(labels_path, LABELS, ())
    images = read(images_path, IMAGES, _SHAPE)
    if len(images) != len(labels):
        expected = f"{len(images)} labels, one per image in {images_path.name},"
        advice = "take both files from the same download"
        raise damaged(labels_path, expected, len(labels), advice)
    if labels.max() >= _CLASSES:
        expected, got = f"labels from 0 to {_CLASSES - 1}", f"label {labels.max()}"
        raise damaged(labels_path, expected, got, "check that this is the data set you named")
    pixels = np.divide(images, np.float32(255))
    return pixels[:, np.newaxis], labels.astype(np.int64)

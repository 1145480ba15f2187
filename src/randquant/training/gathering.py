"""A problem's data on a device: each step's examples are gathered when needed and then dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from randquant.training.clients import check_finite, named
from randquant.training.examples import Examples, StoredExamples
from randquant.training.problem import Problem
from randquant.training.trial import check_labels

EVALUATED_AT_ONCE = 100
"""Examples that are evaluated in one pass: of more, what a layer gives leaves the cache before the
next one reads it, and a convolution takes more than twice as long."""


class Gathering:
    """Gathers examples on a device; the data in memory are held once, in one table.

    Args:
        problem: whose data.
        device: where they are wanted.
        layout: torch's memory format of the features.
    """

    def __init__(self, problem: Problem, device: torch.device, layout: torch.memory_format) -> None:
        self._problem, self._device, self._layout = problem, device, layout
        self.table: StoredExamples | None = self._here(problem.clients.table)
        self._test: Examples | None = self._here(problem.test)
        self._threads = threading.local()
        self._reading = threading.Lock()  # a data set's file may not be read at two places at once

    @property
    def numbers(self) -> int:
        """How many numbers an example's features are, if they are in memory; else 1."""
        return 1 if self.table is None else max(1, self.table.features[0].numel())

    def of_client(self, client: int, places: np.ndarray) -> tuple[Tensor, Tensor]:
        """Features and targets of a client's examples, until this thread gathers again.

        Raises:
            ValueError: one that is read now holds NaN, infinity or a label out of range.
        """
        if self.table is not None:
            return self.rows(places)
        clients = self._problem.clients
        with self._reading, named(clients.names[client]):
            return self._read(clients.sources[client], places)

    def rows(self, places: np.ndarray) -> tuple[Tensor, Tensor]:
        """Features and targets of an array of the table's rows, until this thread gathers again."""
        table = self.table
        assert table is not None
        count = places.size * self.numbers
        # New room each time would cost page faults.
        if not hasattr(self._threads, "room") or self._threads.room.numel() < count:
            kind = table.features.dtype
            self._threads.room = torch.empty(count, dtype=kind, device=self._device)
        features = self._threads.room[:count].view(places.size, *table.features.shape[1:])
        index = torch.from_numpy(places).to(self._device)
        # Three times as fast as by indexing.
        torch.index_select(table.features, 0, index.view(-1), out=features)
        features = features.contiguous(memory_format=self._layout)
        return features.unflatten(0, places.shape), table.targets[index]

    def batches(self, client: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and targets of the test examples, or of all of a client's, batch by batch."""
        if client is not None:
            for places in _split(self._problem.clients.places[client]):
                yield self.of_client(client, places)
        elif self._test is not None:
            for places in _split(np.arange(len(self._test))):
                with named("data", "Test "):
                    yield self._read(self._test, places)

    def _read(self, examples: Examples, places: np.ndarray) -> tuple[Tensor, Tensor]:
        """Examples on the device, checked where they could not be checked before."""
        features, targets = examples.take(places)
        if not isinstance(examples, StoredExamples):
            check_finite(features, targets)
            check_labels(targets, self._problem.labels)
        features = features.to(self._device)
        return features.contiguous(memory_format=self._layout), targets.to(self._device)

    def _here(self, examples: Any) -> Any:
        """The examples on the device, if they are in memory."""
        if not isinstance(examples, StoredExamples):
            return examples
        parts = (examples.features, examples.targets)
        return StoredExamples(*(part.to(self._device) for part in parts))


def _split(places: np.ndarray) -> list[np.ndarray]:
    """Places of examples that are evaluated in one pass each."""
    return np.split(places, range(EVALUATED_AT_ONCE, len(places), EVALUATED_AT_ONCE))

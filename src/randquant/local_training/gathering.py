"""A problem's data on a device: each step's examples are gathered when needed and then dropped."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from randquant.local_training.clients import check_finite, named
from randquant.local_training.copies import Features, of_each
from randquant.local_training.examples import Examples, StoredExamples
from randquant.local_training.problem import Problem
from randquant.local_training.trial import check_labels

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

    def instead(self, table: StoredExamples) -> Gathering:
        """The same with other examples in the table."""
        other = copy.copy(self)
        other.table, other._threads = self._here(table), threading.local()
        return other

    def of_client(self, client: int, places: np.ndarray, seed: int = 0) -> tuple[Features, Tensor]:
        """Features and targets of a client's examples, until this thread gathers again.

        Args:
            client: whose.
            places: of the examples.
            seed: of the random numbers that reading them may draw.

        Raises:
            ValueError: one that is read now holds NaN, infinity or a label out of range.
        """
        if self.table is not None:
            return self.rows(places)
        clients = self._problem.clients
        with self._reading, named(clients.names[client]):
            return self._read(clients.sources[client], places, seed)

    def rows(self, places: np.ndarray) -> tuple[Any, Tensor]:
        """Features and targets of an array of the table's rows, until this thread gathers again."""
        table = self.table
        assert table is not None
        index = torch.from_numpy(places).to(self._device)
        features = of_each(lambda tensor: self._selected(tensor, index.view(-1)), table.features)
        return of_each(lambda each: each.unflatten(0, places.shape), features), table.targets[index]

    def _selected(self, tensor: Tensor, index: Tensor) -> Tensor:
        """Rows of one of the table's tensors, in room that this thread uses again."""
        rooms, count = vars(self._threads), len(index) * tensor[0].numel()
        # New room each time would cost page faults.
        room = rooms.get(f"{id(tensor)}")
        if room is None or room.numel() < count:
            # What is measured is gathered in inference mode: training could not use that room.
            with torch.inference_mode(False):
                room = torch.empty(count, dtype=tensor.dtype, device=self._device)
            rooms[f"{id(tensor)}"] = room
        rows = room[:count].view(len(index), *tensor.shape[1:])
        # Three times as fast as by indexing.
        torch.index_select(tensor, 0, index, out=rows)
        return rows.contiguous(memory_format=self._layout)

    def batches(self, client: int | None = None) -> Iterator[tuple[Features, Tensor]]:
        """Features and targets of the test examples, or of all of a client's, batch by batch."""
        if client is not None:
            for places in _split(self._problem.clients.places[client]):
                yield self.of_client(client, places)
        elif self._test is not None:
            for places in _split(np.arange(len(self._test))):
                with named("data", "Test "):
                    yield self._read(self._test, places)

    def _read(
        self, examples: Examples, places: np.ndarray, seed: int = 0
    ) -> tuple[Features, Tensor]:
        """Examples on the device, checked where they could not be checked before."""
        features, targets = examples.take(places, seed)
        if not isinstance(examples, StoredExamples):
            check_finite(features, targets)
            check_labels(targets, self._problem.labels)
        layout = {"device": self._device, "memory_format": self._layout}
        return of_each(lambda tensor: tensor.to(**layout), features), targets.to(self._device)

    def _here(self, examples: Any) -> Any:
        """The examples on the device, if they are in memory."""
        if not isinstance(examples, StoredExamples):
            return examples
        features = of_each(lambda tensor: tensor.to(self._device), examples.features)
        return StoredExamples(features, examples.targets.to(self._device))


def _split(places: np.ndarray) -> list[np.ndarray]:
    """Places of examples that are evaluated in one pass each."""
    return np.split(places, range(EVALUATED_AT_ONCE, len(places), EVALUATED_AT_ONCE))

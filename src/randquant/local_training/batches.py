"""Batches of a problem's examples on a device, gathered for each step."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from randquant.local_training.clients import check_finite, error_context
from randquant.local_training.dry_run import check_labels
from randquant.local_training.examples import Examples, StoredExamples
from randquant.local_training.models import Features, map_tensors
from randquant.local_training.problem import Problem

EVALUATION_BATCH_SIZE = 100
"""Examples that are evaluated in one pass. With more, the outputs of a layer leave the processor's
cache before the next layer reads them: a convolution then takes more than twice as long."""


class BatchReader:
    """Gathers batches of examples on a device, from one table that all threads share.

    Args:
        problem: the clients' data and the test data.
        device: where batches are needed.
        layout: torch's memory format of the features.
    """

    def __init__(self, problem: Problem, device: torch.device, layout: torch.memory_format) -> None:
        self._problem, self.device, self._layout = problem, device, layout
        self.table: StoredExamples | None = self._moved(problem.clients.table)
        self._test: Examples | None = self._moved(problem.test)
        self._threads = threading.local()
        # A Dataset may read from a file at the file's own position, which threads would share.
        self._reading = threading.Lock()

    def with_table(self, table: StoredExamples) -> BatchReader:
        """Return a reader of another table."""
        # With buffers of its own: those of this reader are for the tensors of its table.
        other = copy.copy(self)
        other.table, other._threads = self._moved(table), threading.local()
        return other

    def client_rows(
        self, client: int, places: np.ndarray, seed: int = 0
    ) -> tuple[Features, Tensor]:
        """Return features and targets of a client's examples, valid until this thread's next call.

        Args:
            client: number of the client.
            places: of the examples.
            seed: of the random numbers that reading them may draw.

        Raises:
            ValueError: an example that is read from a Dataset has NaN, infinity or a label out of
                range.
        """
        if self.table is not None:
            return self.rows(places)
        clients = self._problem.clients
        with self._reading, error_context(clients.names[client]):
            return self._read(clients.sources[client], places, seed)

    def rows(self, places: np.ndarray) -> tuple[Any, Tensor]:
        """Return features and targets of an array of the table's rows, valid as `client_rows`."""
        table = self.table
        assert table is not None
        index = torch.from_numpy(places).to(self.device)
        features = map_tensors(lambda tensor: self._select(tensor, index.view(-1)), table.features)
        return map_tensors(lambda each: each.unflatten(0, places.shape), features), table.targets[
            index
        ]

    def _select(self, tensor: Tensor, index: Tensor) -> Tensor:
        # One buffer for each thread and tensor of the table: new memory would cost page faults.
        buffers, count = vars(self._threads), len(index) * tensor[0].numel()
        buffer = buffers.get(f"{id(tensor)}")
        if buffer is None or buffer.numel() < count:
            # Evaluation calls this in inference mode, and training cannot use such a tensor.
            with torch.inference_mode(False):
                buffer = torch.empty(count, dtype=tensor.dtype, device=self.device)
            buffers[f"{id(tensor)}"] = buffer
        rows = buffer[:count].view(len(index), *tensor.shape[1:])
        # Three times as fast as indexing.
        torch.index_select(tensor, 0, index, out=rows)
        return rows.contiguous(memory_format=self._layout)

    def batches(self, client: int | None = None) -> Iterator[tuple[Features, Tensor]]:
        """Yield features and targets of the test examples, or of all of a client's."""
        if client is not None:
            for places in _evaluation_batches(self._problem.clients.places[client]):
                yield self.client_rows(client, places)
        elif self._test is not None:
            for places in _evaluation_batches(np.arange(len(self._test))):
                with error_context("data", "Test "):
                    yield self._read(self._test, places)

    def _read(
        self, examples: Examples, places: np.ndarray, seed: int = 0
    ) -> tuple[Features, Tensor]:
        features, targets = examples.take(places, seed)
        # Examples in memory were checked once, before the run.
        if not isinstance(examples, StoredExamples):
            check_finite(features, targets)
            check_labels(targets, self._problem.labels)
        layout = {"device": self.device, "memory_format": self._layout}
        return map_tensors(lambda tensor: tensor.to(**layout), features), targets.to(self.device)

    def _moved(self, examples: Any) -> Any:
        # Others are moved batch by batch, as they are read.
        if not isinstance(examples, StoredExamples):
            return examples
        features = map_tensors(lambda tensor: tensor.to(self.device), examples.features)
        return StoredExamples(features, examples.targets.to(self.device))


def _evaluation_batches(places: np.ndarray) -> list[np.ndarray]:
    return np.split(places, range(EVALUATION_BATCH_SIZE, len(places), EVALUATION_BATCH_SIZE))

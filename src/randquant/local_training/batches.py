"""Batches of a problem's examples on a device, gathered for each step."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from randquant.local_training.clients import ClientSet, check_finite, error_context, is_in_memory
from randquant.local_training.dry_run import check_labels
from randquant.local_training.examples import Examples, StoredExamples, ready_type
from randquant.local_training.models import Features, map_tensors, tensors
from randquant.local_training.problem import Problem, check_stored_labels

EVALUATION_BATCH_SIZE = 100
"""Examples that are evaluated in one pass. With more, the outputs of a layer leave the processor's
cache before the next layer reads them: a convolution then takes more than twice as long."""


MAX_TABLE_BYTES = 2**28
"""Most bytes of clients' examples that are copied to one table on a CPU, from which rows of several
clients are gathered by one call: client by client, small models take up to half as long again. With
twice as much, a run of such data would need that much more memory."""


class BatchReader:
    """Gathers batches of examples on a device, for all threads.

    Args:
        problem: the clients' data and the test data.
        device: where batches are needed.
        layout: torch's memory format of the features.
    """

    def __init__(self, problem: Problem, device: torch.device, layout: torch.memory_format) -> None:
        self._problem, self.device, self._layout = problem, device, layout
        # On a GPU all clients' examples are copied to it once, and so they are on a CPU where that
        # takes little memory; else they are used as they are.
        on_gpu, clients = device.type != "cpu", problem.clients
        joined = clients.in_memory and (on_gpu or _table_bytes(clients) <= MAX_TABLE_BYTES)
        self._table = _JoinedTable(clients.sources, device) if joined else None
        self._threads = threading.local()
        # A Dataset, or a function of the user's, may read from a file at the file's own position,
        # which threads would share.
        self._reading = threading.Lock()

    def open(self, clients: Sequence[int]) -> None:
        """Read clients whose turn it is, and forget those that this thread has read before."""
        if self._problem.clients.known:
            return
        self._threads.opened = {}
        for client in clients:
            with self._reading:
                source = self._problem.clients.sources[client]
            with error_context(self._problem.clients.names[client]):
                check_stored_labels(source, self._problem.labels)
            self._threads.opened[client] = source

    def source(self, client: int) -> Examples:
        """Return a client's examples; those of clients that are not open are read alone."""
        if self._problem.clients.known:
            return self._problem.clients.sources[client]
        if client not in getattr(self._threads, "opened", {}):
            self.open([client])
        return self._threads.opened[client]

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
        source = self.source(client)
        if isinstance(source, StoredExamples):
            features, targets = self.rows([client], places[None])
            return map_tensors(lambda each: each[0], features), targets[0]
        with self._reading, error_context(self._problem.clients.names[client]):
            return self._read(source, places, seed)

    def rows(self, clients: Sequence[int], places: np.ndarray) -> tuple[Any, Tensor]:
        """Return clients' features and targets (n, k, …) at `places` (n, k), valid as above.

        Examples of these clients are rows of tensors.
        """
        if self._table is None:
            features, targets = self._gathered(clients, places)
        else:
            out = self._buffers(places.size) if self.device.type == "cpu" else None
            features, targets = self._table.rows(clients, places, out)

        def shaped(each: Tensor) -> Tensor:
            moved = each.to(self.device).contiguous(memory_format=self._layout)
            return moved.unflatten(0, places.shape)

        return map_tensors(shaped, features), targets.to(self.device).unflatten(0, places.shape)

    def _gathered(self, clients: Sequence[int], places: np.ndarray) -> tuple[Any, Tensor]:
        sources: list[Any] = [self.source(client) for client in clients]
        features, targets = self._buffers(places.size)
        slots = [each.unflatten(0, places.shape) for each in (*tensors(features), targets)]
        arrays = [each.numpy() for each in slots]
        for number, source in enumerate(sources):
            source.copy_rows(places[number], [array[number] for array in arrays])
            if source.mapped:
                *inputs, own_targets = (each[number] for each in slots)
                with error_context(self._problem.clients.names[clients[number]]):
                    self._check(tuple(inputs), own_targets)
        return features, targets

    def _buffers(self, count: int) -> tuple[Features, Tensor]:
        # One for each thread: new memory would cost page faults.
        own: Any = getattr(self._threads, "buffers", (None, ()))
        if count > len(own[1]):
            # Evaluation calls this in inference mode, and training cannot use such tensors.
            with torch.inference_mode(False):
                own = self._threads.buffers = self._problem.clients.example.empty(count)
        return map_tensors(lambda each: each[:count], own[0]), own[1][:count]

    def batches(self, client: int | None = None) -> Iterator[tuple[Features, Tensor]]:
        """Yield features and targets of the test examples, or of all of a client's."""
        if client is not None:
            for places in _evaluation_batches(len(self.source(client))):
                yield self.client_rows(client, places)
        elif (test := self._problem.test) is not None:
            for places in _evaluation_batches(len(test)):
                with error_context("data", "Test "):
                    yield self._read(test, places)

    def _read(
        self, examples: Examples, places: np.ndarray, seed: int = 0
    ) -> tuple[Features, Tensor]:
        features, targets = examples.take(places, seed)
        if not is_in_memory(examples):
            self._check(features, targets)
        layout = {"device": self.device, "memory_format": self._layout}
        return map_tensors(lambda each: each.to(**layout), features), targets.to(self.device)

    def _check(self, features: Features, targets: Tensor) -> None:
        # Examples in memory were checked once, before the run or when their client was read.
        check_finite(features, targets)
        check_labels(targets, self._problem.labels)


def _table_bytes(clients: ClientSet) -> int:
    features, targets = clients.example.empty(1)
    return int(clients.sizes.sum()) * sum(each.nbytes for each in (*tensors(features), targets))


class _JoinedTable:
    """The examples of clients in memory in one table on a device, which gathers rows at once."""

    def __init__(self, sources: Sequence[Any], device: torch.device) -> None:
        self.device, ends = device, np.cumsum([len(each) for each in sources])
        self._starts = ends - [len(each) for each in sources]

        def joined(*parts: Tensor) -> Tensor:
            kind = {"dtype": ready_type(parts[0]), "device": device}
            table = torch.empty((ends[-1], *parts[0].shape[1:]), **kind)
            # Part by part, so that neither side holds them twice.
            for start, end, source, part in zip(self._starts, ends, sources, parts, strict=True):
                table[start:end] = source.own(part)
            return table

        self._features = map_tensors(joined, *(each.features for each in sources))
        self._targets = joined(*(each.targets for each in sources))

    def rows(
        self, clients: Sequence[int], places: np.ndarray, out: tuple[Features, Tensor] | None
    ) -> tuple[Features, Tensor]:
        """Return features and targets of clients' examples at `places` (n, k), in one row each.

        Args:
            clients: of which these are.
            places: of the examples of each.
            out: tensors to write to; None for new ones.
        """
        index = places + self._starts[np.array(clients)][:, None]
        where = torch.from_numpy(index.reshape(-1)).to(self.device)
        if out is None:
            features = map_tensors(lambda each: each.index_select(0, where), self._features)
            return features, self._targets.index_select(0, where)

        def select(table: Tensor, buffer: Tensor) -> Tensor:
            # Three times as fast as indexing.
            return torch.index_select(table, 0, where, out=buffer)

        return map_tensors(select, self._features, out[0]), select(self._targets, out[1])


def _evaluation_batches(count: int) -> list[np.ndarray]:
    return np.split(np.arange(count), range(EVALUATION_BATCH_SIZE, count, EVALUATION_BATCH_SIZE))

"""What is trained on whose data, by names that a file can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from randquant._internal import declared
from randquant._internal.declared import Clients, Count, Data

OWN = "own"
"""Name of a mechanism, a data set or a model that was passed as an object, and of the partition
over the clients that data come with."""


CROSS_ENTROPY = "cross_entropy"
"""The usual loss, in torch.nn.functional."""


@dataclass(frozen=True, slots=True)
class Task:
    """A model, a loss, and data that are split over clients.

    Attributes:
        dataset: digits, breast-cancer, mnist or fashion-mnist; own for clients given in Python.
        model: softmax, mlp, mlp32, wide or cnn; own for one given in Python.
        loss: what clients minimise: a name in torch.nn.functional, or module:function; of a named
            data set always cross_entropy.
        data_dir: folder of the data files; digits and breast-cancer need none.
        population: how many clients the data is split over.
        partition: how data is split over clients; own is by the clients that the data come with.
        concentration: Dirichlet concentration.
        problem: digest of the model, the data and the loss, where they are given in Python.
    """

    dataset: Data[str]
    model: Data[str]
    loss: Data[str] = CROSS_ENTROPY
    data_dir: Data[str] = ""
    population: Clients[Count] = 200
    partition: Data[Literal["iid", "shards", "dirichlet", "own"]] = "iid"
    concentration: Data[float] = 0.3
    problem: str = ""

    def __post_init__(self) -> None:
        declared.checked(self)

    @property
    def by_objects(self) -> bool:
        """Whether the model and the clients were passed as objects, which no file holds."""
        return OWN in (self.dataset, self.model)

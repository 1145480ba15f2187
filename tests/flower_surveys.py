"""Surveys asked by Flower, for the tests."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from randquant.channels import Key
from randquant.flower import QuantizedStrategy
from randquant.statistics import SurveyMechanism


def answers(mod, records, name="arrays"):
    """A client app of a few lines, as a user writes it."""
    app = ClientApp()

    @app.train(mods=[mod])
    def _answer(message, context):
        mechanism = SurveyMechanism(message.content["config"]["survey"])
        update = mechanism.update(records(context.node_id), Key.generate())
        return Message(RecordDict({name: ArrayRecord({"table": Array(update)})}), reply_to=message)

    return app


def asked_once(mechanism, grid, first=0.0, **sums):
    """The strategy after its one round, and the sum that it found."""
    inner = FedAvg(min_available_nodes=2, fraction_evaluate=0.0)
    strategy = QuantizedStrategy(inner, mechanism, delta=1e-6, **sums)
    start = np.zeros(mechanism.dimension, np.float32)
    start[0] = first
    terms = ConfigRecord({"survey": mechanism.survey})
    result = strategy.start(
        grid, ArrayRecord({"table": Array(start)}), num_rounds=1, train_config=terms
    )
    return strategy, result.arrays["table"].numpy()

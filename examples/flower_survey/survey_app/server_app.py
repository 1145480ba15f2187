"""The server: asks one table in one round, and prints it."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import randquant as rq
from randquant.flower import AmongClients, QuantizedStrategy

QUERIES = {
    "age": rq.Mean(18, 100),
    "sex": rq.Counts(["f", "m"]),
    "bmi": rq.Quantiles(10, 70, at=[0.5]),
    "survival": rq.KaplanMeier("days", "died", until=1000, bins=10),
}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask all clients, and read the mean of what they sent as a table."""
    config = context.run_config
    cohort = config["cohort"]
    terms = rq.survey(QUERIES, config["epsilon"], 1e-6, "aggregate", cohort, records=cohort)
    mechanism = rq.SurveyMechanism(terms)
    strategy = QuantizedStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=cohort),
        mechanism, delta=1e-6, sums=AmongClients(stable_numbers=config["stable-numbers"]),
    )  # fmt: skip
    zeros = ArrayRecord({"table": Array(np.zeros(mechanism.dimension, np.float32))})
    result = strategy.start(
        grid, zeros, num_rounds=1, train_config=ConfigRecord({"survey": mechanism.survey})
    )
    [row] = strategy.history
    clients = row.asked - row.dropped
    print(mechanism.table(result.arrays["table"].numpy(), clients, records=clients))

"""The server: adapters move by the decoded mean of the roles' steps, and are tested."""

import json
import time
from logging import INFO
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from randquant.aggregation import update_mechanism
from randquant.flower import AmongClients, QuantizedStrategy
from text_app import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds of the run's configuration."""
    config = context.run_config
    model = task.model(config, config["data-dir"])
    found = task.roles(config["data-dir"])
    tested = task.pooled(found.clients_test[: config["num-partitions"]])
    own = {name: config[name] for name in ("clip", "levels", "margin")}
    mechanism = update_mechanism(
        "stochastic-rounding", own, trust="aggregate", cohort=config["cohort"],
        clip_norm=config["clip-norm"],
    )  # fmt: skip
    strategy = QuantizedStrategy(
        FedAvgM(
            fraction_evaluate=0.0,  # the server evaluates
            min_train_nodes=config["cohort"],
            min_available_nodes=config["cohort"],
            server_learning_rate=config["learning-rate"],
        ),
        mechanism,
        delta=config["delta"],
        stop_at_epsilon=config["stop-at-epsilon"] or None,
        sums=AmongClients(
            stable_numbers=config["stable-numbers"],
            neighbours=config["neighbours"] or None,
            step_timeout=config["step-timeout"],
        ),
        folder=config["folder"] or None,
    )
    rounds: dict[int, dict[str, float]] = {}
    started = time.monotonic()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        """Test the model after a round."""
        nonlocal started
        seconds, started = time.monotonic() - started, time.monotonic()
        model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        accuracy, bits = task.scores(model, tested)
        rounds[number] = {"accuracy": accuracy, "bits": bits, "seconds": seconds}
        log(INFO, "After round %d: accuracy %.4f, %.4f bits per character", number, accuracy, bits)
        return MetricRecord({"accuracy": accuracy, "bits": bits})

    result = strategy.start(
        grid,
        ArrayRecord(task.adapters(model)),
        num_rounds=config["num-server-rounds"],
        timeout=config["round-timeout"],
        evaluate_fn=evaluate,
    )
    for number, metrics in result.train_metrics_clientapp.items():
        rounds[number].update(metrics)
    if config["results"]:
        guarantee = strategy.accountant.get_privacy_spent()
        record = {
            "rounds": rounds,
            "adapters": {n: a.tolist() for n, a in result.arrays.to_torch_state_dict().items()},
            "guarantee": str(guarantee),
            "epsilon": guarantee.epsilon,
            "stopped": strategy.stopped,
        }
        Path(config["results"]).write_text(json.dumps(record) + "\n")

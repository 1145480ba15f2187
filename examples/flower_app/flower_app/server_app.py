"""The server: a step with the decoded mean of the clients' gradients, and evaluation."""

import json
import time
from logging import INFO
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from flower_app import task
from randquant.flower import AmongClients, QuantizedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds of the run's configuration."""
    config = context.run_config
    model, learner = task.build(config, client=0)  # for the test data; the server does not train
    # A sum's guarantee counts on the noise of so many clients.
    fewest = config["cohort"] if config["trust"] == "aggregate" else 1
    strategy = QuantizedStrategy(
        FedAvgM(
            fraction_train=config["fraction-train"],
            fraction_evaluate=0.0,  # the server evaluates
            min_train_nodes=fewest,
            min_available_nodes=fewest,
            server_learning_rate=config["learning-rate"],
        ),
        task.mechanism(config),
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
        model.load_state_dict(arrays.to_torch_state_dict())
        learner.load(task.weights(model))
        tested = learner.evaluate()
        rounds[number] = {"accuracy": tested.accuracy, "loss": tested.loss, "seconds": seconds}
        log(INFO, "After round %d: accuracy %.4f (%.1f s)", number, tested.accuracy, seconds)
        return MetricRecord({"accuracy": tested.accuracy, "loss": tested.loss})

    result = strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
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
            "guarantee": str(guarantee),
            "epsilon": guarantee.epsilon,
            "stopped": strategy.stopped,
        }
        Path(config["results"]).write_text(json.dumps(record, indent=2) + "\n")

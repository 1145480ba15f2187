"""The server: a strategy for a target, and a test after each round."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import randquant as rq
from private_app import task
from randquant.flower import QuantizedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the rounds are done, or the target would be exceeded."""
    config, model = context.run_config, task.build_model()
    folder = Path(config["folder"] or f"private-app-{context.run_id}")
    strategy = QuantizedStrategy.for_target(
        epsilon=config["epsilon"],
        rounds=config["num-server-rounds"],
        clients=config["clients"],
        cohort=config["cohort"],
        dropouts=config["dropouts"],
        model=model,
        folder=folder,
    )

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": task.accuracy(model, task.test_data())})

    result = strategy.start(grid, ArrayRecord(model.state_dict()), evaluate_fn=evaluate)
    rq.report(strategy.outcome(result), folder / "report.html")

"""The server: a strategy for a target of one patient, and a test after each round."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import randquant as rq
from hospital_app import task
from randquant.flower import TLS, AmongClients, QuantizedStrategy, RemoteHelper, WithHelper

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the rounds are done, and leave the model and a report in the folder."""
    config, model = context.run_config, task.build_model()
    folder = Path(config["folder"] or f"hospitals-{context.run_id}")
    sums = AmongClients()
    if config["helper"]:  # an address and three files of TLS
        address, *files = config["helper"].split()
        sums = WithHelper(RemoteHelper(address, TLS(*files)))
    strategy = QuantizedStrategy.for_target(
        epsilon=config["epsilon"],
        delta=1e-5,
        rounds=config["num-server-rounds"],
        cohort=config["hospitals"],
        examples=config["patients"],
        model=model,
        sums=sums,
        folder=folder,
    )
    test = task.patients(Path(config["data"]) / "test.csv")

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": task.accuracy(model, test)})

    result = strategy.start(grid, ArrayRecord(model.state_dict()), evaluate_fn=evaluate)
    rq.report(strategy.outcome(result), folder / "report.html")
    print(f"randquant: {task.accuracy(model, test):.1%} of {len(test[1])} test patients right")
    print(f"randquant: one patient: {strategy.accountant.get_privacy_spent()}")
    sent = max(row.sent_bytes for row in strategy.history)
    print(f"randquant: a hospital sent {sent:,} bytes a round, at most")

"""The server: a strategy for a target of one patient."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import randquant as rq
from hospital_app import task
from randquant.flower import QuantizedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the rounds are done, and leave the model and a report in the folder."""
    config, model = context.run_config, task.build_model()
    folder = Path(config["folder"] or f"hospitals-{context.run_id}")
    strategy = QuantizedStrategy.for_target(
        epsilon=config["epsilon"],
        delta=1e-5,
        rounds=config["num-server-rounds"],
        cohort=config["hospitals"],
        examples=config["patients"],
        model=model,
        folder=folder,
    )
    result = strategy.start(grid, ArrayRecord(model.state_dict()))
    print(strategy.accountant.get_privacy_spent())
    rq.report(strategy.outcome(result), folder / "report.html")

"""A plan and the training run of that plan: python benchmarks/planned.py DATA [ROUNDS [RUN]]

10,000 clients, 100 a round, 500 rounds, 1.2 million parameters, epsilon 8 at delta 1e-6 under
secure aggregation, on the Fashion-MNIST files in DATA. ROUNDS sets fewer rounds, for plan and run.
A killed run continues: it is in the folder RUN, by default runs/planned.
"""

import sys
from pathlib import Path

from results import save

from randquant.planning.planner import plan
from randquant.training import train_run
from randquant_papers.configuration import PaperConfig
from randquant_papers.problems import create, inputs_of

MODEL, DIMENSION = "wide", 1_201_290
POPULATION, COHORT, EPSILON, DELTA = 10_000, 100, 8.0, 1e-6

if __name__ == "__main__":
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    path = Path(sys.argv[3] if len(sys.argv) > 3 else "runs/planned")
    planned = plan(DIMENSION, POPULATION, COHORT, rounds, EPSILON, DELTA)
    best = planned.recommended
    assert best is not None
    assert best.noise is not None
    config = PaperConfig.of(
        dataset="fashion-mnist", data_dir=sys.argv[1], model=MODEL, mechanism=best.mechanism,
        parameters=best.parameters, trust="aggregate", clip_norm=planned.need.clip_norm,
        population=POPULATION, cohort=COHORT, rounds=rounds, delta=DELTA, learning_rate=0.02,
        max_participations=planned.need.participations, stop_at_epsilon=EPSILON,
    )  # fmt: skip
    run = train_run(path, inputs_of(config) if path.exists() else create(path, config))
    summary = run.summary
    print(best.guarantee, summary.guarantee, sep="\n")
    assert summary.rounds == rounds
    assert summary.guarantee.epsilon == best.guarantee.epsilon, "not what was planned"
    save(
        "planned",
        {
            "mechanism": best.mechanism,
            "parameters": best.parameters,
            "verdict": planned.verdict,
            "noise_of_the_run": best.noise.share,
            "planned_epsilon": best.guarantee.epsilon,
            "trained_epsilon": summary.guarantee.epsilon,
            "participations": planned.need.participations,
            "rounds": rounds,
            "accuracy": summary.accuracy,
            "seconds": run.seconds,
        },
    )

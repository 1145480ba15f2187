"""Seconds that commands take in fresh processes: python benchmarks/plan_speed.py

User CPU time.
"""

import os
import resource
import subprocess
import sys
import tempfile

from results import save

RUN = ["--epsilon", "8"]
RQM = ["rqm", "--clip", "1", "--margin", "1", "--levels", "16", "--keep", "0.42"]
BIT = ["stochastic-rounding", "--clip", "0.004", "--levels", "2", "--margin", "0.03"]
SETTINGS = {
    "plan, 650 parameters, 200 of 200 clients": (
        ["plan", "--dimension", "650", "--population", "200", "--cohort", "200", "--rounds", "50"],
        RUN,
    ),
    "plan, three mechanisms": (
        ["plan", "--dimension", "650", "--population", "200", "--cohort", "200", "--rounds", "50"],
        [*RUN, "--mechanisms", "stochastic-rounding,pbm,rqm"],
    ),
    "plan, local trust": (
        ["plan", "--dimension", "650", "--population", "200", "--cohort", "200", "--rounds", "50"],
        [*RUN, "--trust", "local"],
    ),
    "plan, 10^6 parameters, 1,000 of 10^6 clients, 10^4 rounds": (
        ["plan", "--dimension", "1000000", "--population", "1000000", "--cohort", "1000"],
        ["--rounds", "10000", *RUN],
    ),
    "plan, 10^9 parameters, 10^4 of 10^6 clients, 10^4 rounds": (
        ["plan", "--dimension", "1000000000", "--population", "1000000", "--cohort", "10000"],
        ["--rounds", "10000", *RUN],
    ),
    "plan, 10^6 parameters, 1,000 of 1,000 clients": (
        ["plan", "--dimension", "1000000", "--population", "1000", "--cohort", "1000"],
        ["--rounds", "50", *RUN],
    ),
    "plan, 10^9 parameters, 10^4 of 10^4 clients": (
        ["plan", "--dimension", "1000000000", "--population", "10000", "--cohort", "10000"],
        ["--rounds", "50", *RUN],
    ),
    "plan, 10^9 parameters, 10^5 of 10^5 clients": (
        ["plan", "--dimension", "1000000000", "--population", "100000", "--cohort", "100000"],
        ["--rounds", "50", *RUN],
    ),
    "compare, 2 bits": (["compare", "--clip", "1", "--bits", "2"], ["--epsilon", "1"]),
    "compare, 2 bits, with curves": (
        ["compare", "--clip", "1", "--bits", "2"],
        ["--epsilon", "1", "--curves"],
    ),
    "compare, 2 bits, all mechanisms": (
        ["compare", "--clip", "1", "--bits", "2"],
        ["--epsilon", "1", "--mechanisms", "all"],
    ),
    "compare, 2 and 3 bits, with a page": (
        ["compare", "--clip", "1", "--bits", "2,3"],
        ["--epsilon", "1", "--output", "compare.html"],
    ),
    "certify, a sum of 200 clients": (["certify", *RQM], ["--clients", "200"]),
    "account, 100 rounds of one of 200 clients": (
        ["account", *BIT, "--dimension", "1000000", "--rounds", "100"],
        ["--clip-norm", "1", "--trust", "aggregate", "--cohort", "200"],
    ),
    "design, 16 levels": (
        ["design", "--clip", "1", "--levels", "16"],
        ["--epsilon", "1", "--reach", "3"],
    ),
    "audit": (["audit", *RQM], []),
}


def seconds(arguments: list[str], folder: str) -> float:
    """User CPU seconds of one command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(
        [sys.executable, "-m", "randquant", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


if __name__ == "__main__":
    found = {}
    for name, (command, rest) in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = seconds(command + rest, folder)
        print(f"{name}: {found[name]:.1f} s", flush=True)
    save("plan_speed", {"user_seconds": found})

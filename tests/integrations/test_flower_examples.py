"""Apps of the examples on real processes: a table asked twice; hospitals, one of them killed."""

import re
import subprocess
import sys

import pytest
from flower_grid import counted, spent
from tests.deployments import DEPLOY, deployment

CLIENTS, EPSILON, DELTA = 4, 40, 1e-6


@pytest.mark.slow
def test_a_table_is_that_of_the_clients_records_and_a_second_one_is_refused(tmp_path):
    """Laplace noise is beyond 10 of its deviations once in 10**6; wrong sums are far off."""
    options = ("--app", str(DEPLOY.parents[1] / "flower_survey"), "--epsilon", "64", "--runs", "2")
    printed, status = deployment(tmp_path, CLIENTS, *options, settings=[f"epsilon={EPSILON}"])
    assert status == 0, printed
    log = (tmp_path / "run.log").read_text()
    rows = re.findall(
        r"^(\w+: [\w. ]+?)  +(\S+)  +(\S+) to (\S+)  +(\S+)  +\S+$", log, re.MULTILINE
    )
    table = {label: tuple(map(float, numbers)) for label, *numbers in rows}
    categories = ["f", "m", "other or missing"]
    assert list(table) == [
        "age: mean", "age: deviation", "age: present", *(f"sex: {each}" for each in categories),
        "bmi: 0.5", *(f"survival: {days}" for days in range(100, 1001, 100)),
    ]  # fmt: skip
    for label, truth in zip(("age: present", *(f"sex: {c}" for c in categories)), (4, 2, 2, 0),
                            strict=True):  # fmt: skip
        estimate, lower, upper, noise = table[label]
        assert abs(estimate - truth) < 10 * noise < 5
        assert lower <= estimate <= upper
    assert log.count(f"4 records of 4 clients; epsilon <= {EPSILON} at delta = {DELTA}") == 1
    refused = r"reply of 4 clients .* this client's limit, got ([\d.]+) with all earlier answers"
    (offered,) = re.findall(refused, printed)
    assert 1.9 * EPSILON < float(offered) <= 2 * EPSILON
    for client in range(CLIENTS):
        own = (tmp_path / f"client{client}.log").read_text()
        assert "randquant: refused: Expected an offer within epsilon 64.0" in own
        assert spent(tmp_path / f"account{client}", DELTA)[0] == 1
        assert EPSILON * 0.99 < spent(tmp_path / f"account{client}", DELTA)[1] <= EPSILON
    assert "Expected clients >= 3, got clients=0: a round that failed" in log


@pytest.mark.slow
def test_three_hospitals_go_on_without_the_one_that_was_killed(tmp_path):
    """What `make flower-demo` runs, in fewer rounds: patients stay within epsilon 2."""
    app = DEPLOY.parents[1] / "flower_hospitals"
    sites, folder = tmp_path / "sites", tmp_path / "run"
    subprocess.run([sys.executable, str(app / "sites.py"), str(sites)], check=True)
    options = (
        "--app", str(app), "--sites", str(sites), "--helper", "--epsilon", "2", "--examples", "114",
        "--kill-client", "1",
    )  # fmt: skip
    printed, status = deployment(folder, CLIENTS, *options, settings=["num-server-rounds=2"])
    assert status == 0, printed
    assert "Killed client 3 in round 1, before it had answered." in printed
    rounds = re.findall(
        r"round (\d): ε ≤ [\d.]+ \(<= [\d.]+ under zero_out\); (\d) clients, (\d) dropped", printed
    )
    assert rounds == [("1", "4", "1"), ("2", "3", "0")]
    (epsilon,) = re.findall(r"one patient: epsilon <= ([\d.]+) at delta = 1e-05", printed)
    assert 1.9 < float(epsilon) <= 2
    assert "if every sum has at least 2 honest others and the helper does not collude" in printed
    assert re.search(r"% of 114 test patients right", printed)
    answers = [counted(folder / f"account{client}")[0] for client in range(CLIENTS)]
    assert answers[:3] == [2, 2, 2]
    assert answers[3] <= 1  # killed before or after it had counted its answer
    command = [sys.executable, "-m", "randquant", "helper", "status", str(folder / "journal")]
    status = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert '"by_sums": {"2": 3}' in status.stdout

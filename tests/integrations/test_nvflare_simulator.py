"""The job of the hospitals' example on NVFlare's simulator, killed and started again."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_grid import spent
from hospital_files import SITES, invented

from randquant.rounds import ServerStore, service, write_certificates
from randquant.secure_sums import Helper

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
ROUNDS = 3
LONGEST = 240  # seconds of a job, which takes 20 on two quiet cores
OF_RUN = ("--epsilon", "2", "--rounds", str(ROUNDS))


def started(data, folder, *options):
    return script("run.py", data, folder, *OF_RUN, *options)


def script(name, data, folder, *options, example=EXAMPLE):
    source = str(EXAMPLE.parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, str(example / name), "--data", str(data), "--folder", str(folder)]
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip


def killed(process):
    """Kill a process and all its descendants at once; they may have sessions of their own."""
    everyone = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in everyone:
        each.send_signal(signal.SIGSTOP)  # so that nobody starts another
    for each in [*psutil.Process(process.pid).children(recursive=True), *everyone]:
        each.kill()
    process.wait()
    psutil.wait_procs(everyone, timeout=20)


def aborted(process):
    """Have a process and all its descendants print where each of their threads is, and end."""
    everyone = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in everyone:
        each.send_signal(signal.SIGABRT)
    psutil.wait_procs(everyone, timeout=20)
    if process.poll() is None:
        killed(process)


def attempts(tmp_path):
    """Names and folders of two attempts: NVFlare's simulator may stand still in the first one.

    It waits for ever for a site that ended, or took over 60 s to start, as four at once may on a
    loaded machine.
    """
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        folder.mkdir()
        invented(folder)
        yield attempt, folder


def printed_by(run, attempt):
    """What a simulator printed, and whether it ended; it may stand still in the first attempt."""
    try:
        return run.communicate(timeout=LONGEST)[0], True
    except subprocess.TimeoutExpired:
        aborted(run)
        printed = run.communicate()[0]
        stood_still(printed, attempt)
        return printed, False


def stood_still(printed, attempt):
    assert attempt == "first", printed
    warnings.warn(f"The simulator stood still, and is started again:\n{printed}", stacklevel=2)


def state(folder):
    """(rounds done, how often each site was asked) of the server's file."""
    stored = ServerStore(folder / "server" / "server.sqlite").read()
    return stored.progress["rounds"], [sum(c.values()) for c in stored.account["clients"].values()]


def answered(folder, site, delta=1e-5):
    return spent(folder / "sites" / f"{site}.account", delta)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("default:The simulator stood still")
def test_a_killed_job_continues_and_forgets_nothing_that_was_sent(tmp_path):
    for attempt, folder in attempts(tmp_path):
        done, before = killed_in_round_2(folder, attempt)
        if done is None:
            continue
        again = started(folder, folder / "run")
        log, ended = printed_by(again, attempt)
        if ended:
            break
    assert again.returncode == 0, log
    assert "patients right" in log
    assert f"continuing after round {done}" in log
    left = ROUNDS - (done + 1)  # the limit allows so many answers, those of the lost round included
    assert state(folder / "run") == (done + left, [ROUNDS] * len(SITES))
    assert f"training ends before round {ROUNDS}" in log
    for site in SITES:
        assert answered(folder / "run", site) == before[site] + left
    assert log.count("this client's answers so far: one example: epsilon <=") == left * len(SITES)


def killed_in_round_2(folder, attempt):
    """(rounds done, each site's answers) of a job that was killed before an answer arrived.

    The former is None where the simulator stood still before.
    """
    first, seen, late = started(folder, folder / "run"), [], threading.Event()

    def expired():
        late.set()
        aborted(first)

    watch = threading.Timer(LONGEST, expired)
    watch.start()
    try:
        for line in first.stdout:
            seen.append(line)
            if "this client's answers" in line and any("round 1 of" in each for each in seen):
                break
    finally:
        watch.cancel()
        watch.join()
        if first.poll() is None:
            killed(first)
        first.stdout.close()
    if late.is_set():
        stood_still("".join(seen), attempt)
        return None, {}
    done, asked = state(folder / "run")
    assert done < ROUNDS, "".join(seen)
    assert asked == [done + 1] * len(SITES)
    before = {site: answered(folder / "run", site) for site in SITES}
    assert max(before.values()) == done + 1
    return done, before


@contextlib.contextmanager
def helping(folder):
    """A helper's service in this process: the options of a script that uses it, and the helper."""
    own, _ = write_certificates(folder / "tls")
    identity = Ed25519PrivateKey.generate()
    helper = Helper(folder / "helper", identity)
    server, port = service(helper, "localhost:0", own)
    server.start()
    pinned = identity.public_key().public_bytes_raw().hex()
    options = ["--helper", f"localhost:{port}", "--helper-identity", pinned]
    try:
        yield [*options, "--tls", str(folder / "tls")], helper
    finally:
        server.stop(grace=None).wait()


@pytest.mark.slow
@pytest.mark.filterwarnings("default:The simulator stood still")
def test_four_hospitals_sum_with_a_helper_that_is_another_process(tmp_path):
    """The server's file has no payload of a site, and the helper has answered every round."""
    for attempt, folder in attempts(tmp_path):
        with helping(folder) as (options, helper):
            run = started(folder, folder / "run", *options)
            printed, ended = printed_by(run, attempt)
        if ended:
            break
    assert run.returncode == 0, printed
    assert printed.count("patients right") == len(SITES)
    assert state(folder / "run")[0] == ROUNDS
    assert set(helper.sums.values()) == {ROUNDS}
    assert len(helper.sums) == len(SITES)


@pytest.mark.slow
@pytest.mark.filterwarnings("default:The simulator stood still")
def test_four_hospitals_ask_a_table_of_their_patients(tmp_path):
    """Of 480 patients all are men; noise is beyond 10 of its deviations once in 10**6 at most."""
    for attempt, folder in attempts(tmp_path):
        with helping(folder) as (options, helper):
            run = script("survey.py", folder, folder / "run", *options)
            printed, ended = printed_by(run, attempt)
        if ended:
            break
    assert run.returncode == 0, printed
    row = re.search(r"^men: 1 +(\S+) +(\S+) to (\S+) +(\S+)", printed, re.MULTILINE)
    assert row, printed
    men, lower, upper, noise = map(float, row.groups())
    assert abs(men - 480) <= 10 * noise < 240
    assert lower <= men <= upper
    [epsilon] = re.findall(r"480 records of 4 clients; epsilon <= (\S+) at delta = 1e-06", printed)
    assert 0.9 < float(epsilon) <= 1
    sums = list(helper.sums.values())
    assert sums == [answered(folder / "run", site, 1e-6) for site in SITES] == [1] * len(SITES)


@pytest.mark.slow
@pytest.mark.filterwarnings("default:The simulator stood still")
def test_a_script_of_the_client_api_protects_a_patient_with_a_model_of_torch(tmp_path):
    for attempt, folder in attempts(tmp_path):
        example = EXAMPLE.with_name("nvflare_hospitals")
        run = script("job.py", folder, folder / "run", "--rounds", "2", example=example)
        printed, ended = printed_by(run, attempt)
        if ended:
            break
    assert run.returncode == 0, printed
    figures = re.findall(
        r"round (\d) of 2: one example: epsilon <= ([\d.]+) \(<= [\d.]+ under zero_out\) at",
        printed,
    )
    assert [number for number, _ in figures] == ["1", "2"], printed
    assert 1.9 < float(figures[1][1]) <= 2.0
    assert [answered(folder / "run", site) for site in SITES] == [2] * len(SITES)
    assert list((folder / "run").rglob("FL_global_model.pt"))

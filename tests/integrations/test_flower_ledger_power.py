"""Power cuts: at no reachable state of the disk does an account state less than was released."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from flower_grid import context_of, counted, ledger_of
from flower_rounds import model, noisy
from flwr.serverapp.strategy import FedAdam
from power import Trace, reachable, restore

from randquant._internal import files as disk
from randquant._internal import serialization
from randquant.integrations.flower import state
from randquant.rounds import OWN, DamagedFile, Offer, RoundEvent, RunAccountant
from randquant.rounds import state as server_state

OFFER = Offer(noisy("local"), 5)


def answer(path, number):
    """Count an answer and take a step, as a client does before it sends anything."""
    with ledger_of(context_of(path)).held() as ledger:
        ledger.take(b"%d" % number, "upload")
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({OWN})))
        ledger.save()


def client_trace(tmp_path, monkeypatch, answers=3):
    """What a client writes: each answer is noted when it may be sent."""
    (tmp_path / "client").mkdir()
    with monkeypatch.context() as patch:
        trace = Trace(tmp_path / "client", patch)
        for number in range(answers):
            answer(tmp_path / "client" / "account", number)
            trace.note("answer")
    return trace.events


def server_trace(tmp_path, monkeypatch, rounds=2):
    """What a server writes into a new folder of a new folder: rounds are noted when asked for."""
    accountant = RunAccountant(1e-5)
    (tmp_path / "server").mkdir()
    with monkeypatch.context() as patch:
        trace = Trace(tmp_path / "server", patch)
        for number in range(rounds):
            accountant.compose(RoundEvent(OFFER, frozenset({1, 2})))
            record = {"rounds": number, "accountant": accountant.state_dict()}
            state.save(tmp_path / "server" / "runs" / "one" / "server.state", record, model(),
                       FedAdam(), {})  # fmt: skip
            trace.note("asked")
    return trace.events


def of_client(folder):
    answers, steps = counted(folder / "account")
    assert answers == steps
    return answers


def of_server(folder):
    path = folder / "runs" / "one" / "server.state"
    if not path.exists():
        return 0
    accountant = RunAccountant(1e-5)
    record, _, _ = state.load(path, FedAdam())
    accountant.load_state_dict(record["accountant"])
    return accountant.answers(1)


def judged(events, read, tmp_path):
    """For each reachable state: (released before the cut, what the account states or None)."""
    found = []
    for number, (noted, files) in enumerate(reachable(events)):
        folder = restore(files, tmp_path / f"{read.__name__}{number}")
        try:
            found.append((len(noted), read(folder)))
        except (DamagedFile, ValueError):
            found.append((len(noted), None))
    return found


@pytest.mark.parametrize(("write", "read"), [(client_trace, of_client), (server_trace, of_server)])
def test_no_power_cut_makes_an_account_state_less_than_was_released(
    write, read, tmp_path, monkeypatch
):
    found = judged(write(tmp_path, monkeypatch), read, tmp_path)
    assert len(found) > 20
    assert all(stated is not None for _, stated in found), "an account is damaged"
    assert all(released <= stated <= released + 1 for released, stated in found)
    assert {stated - released for released, stated in found} == {0, 1}


def forgets_the_names(monkeypatch):
    monkeypatch.setattr(serialization, "sync_folder", lambda folder: None)


def forgets_the_bytes(monkeypatch):
    monkeypatch.setattr(serialization, "flush", lambda file: None)


def renames_first(monkeypatch):
    def flush(file):
        name = Path(os.readlink(f"/proc/self/fd/{file}"))
        os.replace(name, name.with_name(name.name.removesuffix(".partial")))
        disk.flush(file)
        os.replace(name.with_name(name.name.removesuffix(".partial")), name)

    monkeypatch.setattr(serialization, "flush", flush)


def writes_in_place(monkeypatch):
    def write(path, data, *, private):
        with serialization.open(path, "wb") as file:  # type: ignore[attr-defined]
            file.write(data)
            file.flush()
            disk.flush(file.fileno())
        disk.sync_folder(path.parent)

    for module in ("ledger", "state"):
        monkeypatch.setattr(f"randquant.integrations.{module}.write_atomic", write)


def forgets_new_folders(monkeypatch):
    monkeypatch.setattr(
        server_state, "make_folder", lambda folder: folder.mkdir(parents=True, exist_ok=True)
    )


@pytest.mark.parametrize(
    ("fault", "write", "read"),
    [
        *((fault, client_trace, of_client)
          for fault in (forgets_the_names, forgets_the_bytes, renames_first, writes_in_place)),
        (forgets_new_folders, server_trace, of_server),
        (forgets_the_names, server_trace, of_server),
    ],
)  # fmt: skip
def test_a_write_that_does_less_is_found_out(fault, write, read, tmp_path, monkeypatch):
    """The enumeration can fail: each of these loses or damages an account in some state."""
    with monkeypatch.context() as patch:
        fault(patch)
        events = write(tmp_path, patch)
    found = judged(events, read, tmp_path)
    assert any(stated is None or stated < released for released, stated in found)

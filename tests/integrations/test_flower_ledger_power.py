"""Power cuts: at no reachable state of the disk does an account state less than was released."""

from __future__ import annotations

import numpy as np
import pytest
from flower_grid import context_of, counted, ledger_of
from flower_rounds import noisy
from power import Trace, reachable, restore

from randquant._internal import files as disk
from randquant.rounds import (
    THIS_CLIENT,
    DamagedFile,
    Offer,
    RoundEvent,
    RunAccountant,
    ServerRun,
    ServerStore,
)

OFFER = Offer(noisy("local"), 5)
NAME = "server.sqlite"


def answer(path, number):
    """Count an answer and take a step, as a client does before it sends anything."""
    with ledger_of(context_of(path)).locked() as ledger:
        ledger.take(b"%d" % number, "upload")
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({THIS_CLIENT})))
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
    (tmp_path / "server").mkdir()
    folder = tmp_path / "server" / "runs" / "one"
    with monkeypatch.context() as patch:
        trace = Trace(tmp_path / "server", patch)
        disk.make_folder(folder)
        accountant = RunAccountant(1e-5)
        run = ServerRun(noisy("local"), accountant, print, store=ServerStore(folder / NAME))
        for number in range(1, rounds + 1):
            kept = {"w": np.full(3, float(number))}, {}
            run.charge(number, OFFER, {1, 2}, lambda: ({"w": np.zeros(3)}, {}))
            trace.note("asked")
            run.succeeded(number, 2, 2, {}, kept)
    return trace.events


def of_client(folder):
    answers, steps = counted(folder / "account")
    assert answers == steps
    return answers


def of_server(folder):
    store = ServerStore(folder / "runs" / "one" / NAME)
    if not store.exists():
        return 0
    stored, accountant = store.read(), RunAccountant(1e-5)
    accountant.load_state_dict(stored.account)
    done = stored.progress["rounds"]
    assert len(stored.history) == done
    assert stored.arrays["model/w"].tolist() == [done] * 3
    return accountant.answers(1)


def judged(events, read, tmp_path, monkeypatch):
    """For each reachable state: (released before the cut, what the account states or None)."""
    # What is read is not written again in earnest: no second power cut is tried.
    quick = tuple(each.replace("EXTRA", "OFF") for each in disk.DATABASE_SETTINGS)
    monkeypatch.setattr(disk, "DATABASE_SETTINGS", quick)
    for number, (noted, files) in enumerate(reachable(events)):
        folder = restore(files, tmp_path / f"{read.__name__}{number}")
        try:
            yield len(noted), read(folder)
        except (DamagedFile, ValueError, OSError):
            yield len(noted), None


@pytest.mark.parametrize(("write", "read"), [(client_trace, of_client), (server_trace, of_server)])
def test_no_power_cut_makes_an_account_state_less_than_was_released(
    write, read, tmp_path, monkeypatch
):
    found = list(judged(write(tmp_path, monkeypatch), read, tmp_path, monkeypatch))
    assert len(found) > 20
    assert all(stated is not None for _, stated in found), "an account is damaged"
    assert all(released <= stated <= released + 1 for released, stated in found)
    assert {stated - released for released, stated in found} == {0, 1}


def forgets_the_names(monkeypatch):
    monkeypatch.setattr(disk, "sync_folder", lambda folder: None)


def forgets_the_bytes(monkeypatch):
    """As SQLite does by itself where nothing is set, or on a disk that says it has flushed."""
    settings = tuple(s.replace("EXTRA", "OFF") for s in disk.DATABASE_SETTINGS)
    monkeypatch.setattr(disk, "DATABASE_SETTINGS", settings)


def forgets_that_it_deleted(monkeypatch):
    """A journal that comes back undoes what was committed."""
    settings = tuple(s.replace("EXTRA", "FULL") for s in disk.DATABASE_SETTINGS)
    monkeypatch.setattr(disk, "DATABASE_SETTINGS", settings)


def forgets_new_folders(monkeypatch):
    monkeypatch.setattr(disk, "make_folder", lambda folder: folder.mkdir(parents=True))


@pytest.mark.parametrize(
    ("fault", "write", "read"),
    [
        (forgets_the_bytes, client_trace, of_client),
        (forgets_that_it_deleted, client_trace, of_client),
        (forgets_the_bytes, server_trace, of_server),
        (forgets_new_folders, server_trace, of_server),
        (forgets_the_names, server_trace, of_server),
    ],
)  # fmt: skip
def test_a_write_that_does_less_is_found_out(fault, write, read, tmp_path, monkeypatch):
    """The enumeration can fail: each of these loses or damages an account in some state."""
    with monkeypatch.context() as patch:
        fault(patch)
        events = write(tmp_path, patch)
    found = judged(events, read, tmp_path, monkeypatch)
    assert any(stated is None or stated < released for released, stated in found)

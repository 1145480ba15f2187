"""NVFlare's filter and controller on real Shareables and DXOs, in one process."""

import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare_job import (
    LEFT,
    MECHANISM,
    MODEL,
    SITES,
    UPDATE,
    Server,
    asked,
    context_of,
    passed,
    result,
)

from randquant._internal import files
from randquant._internal.formatting import round_up
from randquant.aggregation import AdditiveMechanism, VectorMechanism
from randquant.integrations import REQUEST, SESSION, QuantizeController, QuantizeFilter
from randquant.integrations.nvflare import PAYLOAD, read_arrays, request_in
from randquant.mechanisms import stochastic_rounding
from randquant.privacy import account, run_release
from randquant.rounds import Layout


def test_the_model_moves_by_the_mean_of_the_codes_and_by_nothing_else(tmp_path):
    server = Server(tmp_path, rounds=1, learning_rate=2.0).run()
    [now] = server.sums
    mean = now.mean()
    assert np.array_equal(server.saved[0]["weight"].ravel(), np.float32(2.0 * mean[:12]))
    assert np.array_equal(server.saved[0]["bias"], np.float32(2.0 * mean[12:]))
    for name in LEFT:  # no parameters: never sent, and as the server had them
        assert np.array_equal(server.saved[0][name], MODEL[name])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("kind", "unit"), [(None, "client"), (8, "example")])
def test_server_and_site_count_the_same_and_it_is_what_account_says(kind, unit, tmp_path):
    server = Server(tmp_path, examples=kind).run()
    spent = server.controller._run.accountant.get_privacy_spent()
    release = MECHANISM.release(14, 3)
    assert spent == account([run_release(MECHANISM, 14, 3, examples=kind)], 1e-5)
    assert spent.unit == unit
    assert server.controller._run.accountant.client_guarantee() == account([release], 1e-5)
    with server.filters["va"]._member(context_of("va")).ledger.locked() as ledger:
        assert ledger.accountant.get_privacy_spent() == spent
    other = account([run_release(MECHANISM, 14, 3, "zero_out", examples=kind)], 1e-5)
    said = f"epsilon <= {round_up(spent.epsilon)} (<= {round_up(other.epsilon)} under zero_out) at "
    assert [line for line in server.log if said in line and "round 3 of 3" in line]
    assert [line for line in server.log if said in line and "randquant: the run, " in line]


@pytest.mark.parametrize(("stated", "own"), [(None, 120), (40, 120)])
def test_a_site_counts_the_unit_that_it_set_whatever_the_server_states(stated, own, tmp_path):
    one = run_release(MECHANISM, 14, 1, examples=own)
    due = account([one], 1e-5, quick=True).epsilon
    server = Server(tmp_path, examples=stated)

    def ask(limit):
        site = QuantizeFilter(limit, str(tmp_path / "site"), examples=own, clip_norm=1.0)
        return passed(site, "va", asked(server), lambda *_: result())

    with pytest.raises(ValueError, match="within epsilon"):
        ask(due * 0.99)
    assert ask(due * 1.01)


@pytest.mark.parametrize("own", [None, 40])
def test_a_site_refuses_a_server_whose_figure_for_a_patient_would_not_be_its_own(own, tmp_path):
    """A server that speaks of patients does not make a whole site's limit one of a patient."""
    server = Server(tmp_path, examples=120)
    site = QuantizeFilter(1e9, str(tmp_path / "site"), examples=own, clip_norm=1.0)
    with pytest.raises(ValueError, match=f"whose examples is {own or 'none'}, got examples=120"):
        passed(site, "va", asked(server), lambda *_: result())


def test_weights_that_may_be_tied_are_named_before_any_site_is_asked(tmp_path, monkeypatch):
    weight = np.arange(6, dtype=np.float32)
    monkeypatch.setitem(MODEL, "embedding", weight)
    monkeypatch.setitem(MODEL, "head", weight.copy())
    with pytest.warns(UserWarning, match="Got 'embedding' and 'head' with the same numbers"):
        Server(tmp_path)


def test_the_server_stops_before_its_limit(tmp_path):
    two = account([MECHANISM.release(14, 2)], 1e-5).epsilon
    server = Server(tmp_path, rounds=9, stop_at_epsilon=two * 1.01).run()
    assert server.controller._run.done == len(server.saved) == 2
    assert server.controller._run.accountant.get_privacy_spent().epsilon <= two * 1.01
    assert any("training ends before round 3" in line for line in server.log)


def test_a_site_refuses_before_its_own_limit_and_sends_nothing(tmp_path):
    two = account([MECHANISM.release(14, 2)], 1e-5).epsilon
    trained = []
    server = Server(tmp_path, lambda *task: trained.append(task) or result(), two * 1.01, rounds=9)
    server.run()
    assert server.controller._run.done == 2
    assert len(trained) == 2 * len(SITES)  # refused before training
    assert any("va: Expected an offer within epsilon" in line for line in server.log)
    assert any("panic" in line for line in server.log)


def test_of_jobs_at_once_a_site_answers_no_more_than_its_limit(tmp_path):
    """Each is a process of its own, and has passed the first check before another answers."""
    limit, sent = account([MECHANISM.release(14, 1)], 1e-5, quick=True).epsilon * 1.01, []

    def job(others):
        site = QuantizeFilter(limit, str(tmp_path / "site"))

        def train(*_):
            if others:
                job(others - 1)
            return result()

        server = Server(tmp_path / f"{others}")
        with contextlib.suppress(ValueError):
            sent.append(passed(site, "va", asked(server), train))

    job(2)
    assert len(sent) == 1


def test_what_was_asked_is_counted_when_a_run_is_killed_in_a_round(tmp_path):
    class Killed(BaseException):
        pass

    def kill(site, reply):
        if server.controller._run.done == 1:
            raise Killed
        return reply

    server = Server(tmp_path)
    server.tamper = kill
    with pytest.raises(Killed):
        server.run()
    model = server.saved[-1]
    server, begun = Server(tmp_path), []
    server.tamper = lambda site, reply: begun.append(server.controller._model) or reply
    server.run()
    assert "randquant: continuing after round 1." in server.log
    assert all(np.array_equal(begun[0][name], model[name]) for name in MODEL)
    assert server.controller._run.done == 3
    spent = account([MECHANISM.release(14, 4)], 1e-5)
    assert server.controller._run.accountant.get_privacy_spent() == spent


def test_a_run_that_is_over_still_gives_a_new_job_its_model(tmp_path):
    """It was killed between its state and the persistor; each job has a folder of its own."""
    first, second = Server(tmp_path, rounds=2), Server(tmp_path, rounds=2)
    first.run()
    second.run()
    assert len(second.saved) == 1
    assert all(np.array_equal(second.saved[0][name], first.saved[-1][name]) for name in MODEL)


def test_a_state_of_another_run_is_refused(tmp_path):
    Server(tmp_path, rounds=1).run()
    other = VectorMechanism(stochastic_rounding(clip=0.5, levels=2, margin=0.2), clip_norm=1.0)
    with pytest.raises(
        ValueError,
        match=r"this mechanism, model and step, offer \w+\.\.\., .*, got offer \w+\.\.\., ",
    ):
        Server(tmp_path, mechanism=other).run()
    server = Server(tmp_path)
    server.controller._model["bias"] = np.zeros(2)  # float64
    with pytest.raises(
        ValueError,
        match=r"this mechanism, model and step, offer \w+\.\.\., .*, got offer \w+\.\.\., ",
    ):
        server.run()


def test_the_state_is_read_when_no_other_server_can_add_to_it(tmp_path):
    """A server that was started beside another one goes on from what that one has sent."""
    second = Server(tmp_path, rounds=3)
    Server(tmp_path, rounds=2).run()
    second.run()
    assert second.controller._run.accountant.get_privacy_spent().releases == 3 * 16
    third = Server(tmp_path, rounds=4)
    with files.folder(tmp_path / "server"), pytest.raises(BlockingIOError):
        third.run()


def test_a_model_that_could_not_be_read_again_is_refused_before_anybody_is_asked(tmp_path):
    server = Server(tmp_path, patience=1)
    server.controller._model["names"] = np.array(["a"])
    server.run()
    assert any("Expected arrays of numbers, got 'model/names'" in line for line in server.log)
    assert not (tmp_path / "sites" / "va.account").exists()


HOSTILE = {
    "shape": (result({**UPDATE, "bias": np.zeros(3, np.float32)}), "shape"),
    "missing": (result({"weight": UPDATE["weight"]}), "'bias'.*got none"),
    "integers": (result({**UPDATE, "bias": np.zeros(2, np.int64)}), "'bias'.*int64"),
    "metrics": (result({"accuracy": 0.9}, DataKind.METRICS), "an update or a model"),
}


def of_va(server, reply, name="va"):
    """What leaves a site whose training has this result."""
    return passed(server.filters["va"], name, asked(server), lambda *_: reply)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_result_that_is_no_update_is_refused_in_a_sentence(name, tmp_path):
    reply, reason = HOSTILE[name]
    with pytest.raises(ValueError, match=f"^Expected [^\n]*({reason})[^\n]*\\.$"):
        of_va(Server(tmp_path), reply)
    # Counted: the server sees that this site has failed, which may depend on its data.
    assert (tmp_path / "sites" / "va.account").exists()


@pytest.mark.parametrize("bias", [np.float32([0, np.nan]), np.array([0, 1e300])])
def test_a_result_that_is_not_finite_is_sent_as_zeros_and_counted(bias, tmp_path):
    server = Server(tmp_path)
    assert of_va(server, result({**UPDATE, "bias": bias})).get_return_code() == ReturnCode.OK
    assert (tmp_path / "sites" / "va.account").exists()


def test_a_model_is_sent_as_its_difference_but_not_for_one_patient(tmp_path, monkeypatch):
    server = Server(tmp_path)
    model = MODEL | {name: MODEL[name] + UPDATE[name] for name in UPDATE}

    def train(_, task):
        for array in from_shareable(task).data.values():
            array += 9  # training in place
        return result(model, DataKind.WEIGHTS)

    seen, layout = [], Layout.update

    def update(*given):
        seen.append(layout(*given))
        return seen[-1]

    monkeypatch.setattr(Layout, "update", update)
    passed(server.filters["va"], "va", asked(server), train)
    assert np.array_equal(seen[0], np.concatenate([UPDATE[n].ravel() for n in UPDATE]))
    patient = QuantizeFilter(9.0, str(tmp_path / "patient"), examples=100, clip_norm=1.0)
    with pytest.raises(ValueError, match="an update of clipped gradients, got a model"):
        passed(patient, "va", asked(server), train)


def test_tensors_are_sent_as_arrays_are(tmp_path):
    torch = pytest.importorskip("torch")
    kinds = {"weight": torch.bfloat16, "bias": torch.float64}
    update = {name: torch.full(MODEL[name].shape, 0.25, dtype=kinds[name]) for name in UPDATE}
    found = read_arrays(from_shareable(result({**update, "n": torch.tensor(3)})))
    assert all(np.array_equal(found[name], np.full(MODEL[name].shape, 0.25)) for name in UPDATE)
    assert of_va(Server(tmp_path), result(update))


@pytest.mark.parametrize(("offered", "own"), [(0.01, 1.0), (1.0, 1.001), (1.0, None)])
def test_a_mechanism_that_clips_below_the_sites_training_code_is_refused(offered, own, tmp_path):
    """Of 100 patients clipped at 1 each moves the mean by 0.02, whatever norm is offered."""
    mechanism = VectorMechanism(stochastic_rounding(clip=0.5, levels=2, margin=0.1), offered)
    server, trained = Server(tmp_path, mechanism=mechanism, examples=100), []
    site = QuantizeFilter(1e9, str(tmp_path / "site"), examples=100, clip_norm=own)
    with pytest.raises(ValueError, match=f"got one that clips at {offered} for a client"):
        passed(site, "va", asked(server), lambda *task: trained.append(task) or result())
    assert not trained
    whole = QuantizeFilter(1e9, str(tmp_path / "whole"), clip_norm=own)  # it is clipped as a whole
    server = Server(tmp_path / "of sites", mechanism=mechanism)
    assert passed(whole, "va", asked(server), lambda *_: result())


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_sum_of_patients_in_16_bits_is_refused(kind, tmp_path):
    """Sums of 1,000 patients, one of whom moves them by 2, are 4 apart in bfloat16."""
    torch = pytest.importorskip("torch")
    narrow = {**UPDATE, "bias": torch.from_numpy(UPDATE["bias"]).to(getattr(torch, kind))}
    half = {**UPDATE, "weight": UPDATE["weight"].astype(np.float16)}
    for name, update in ((f"'bias' in torch.{kind}", narrow), ("'weight' in float16", half)):
        with pytest.raises(ValueError, match=f"in float32 or float64, got {name}"):
            of_va(Server(tmp_path / name, examples=1000), result(update))
    more = result({**UPDATE, "n": np.float16(3)})  # n is not sent
    assert of_va(Server(tmp_path, examples=1000), more)
    assert of_va(Server(tmp_path / "site"), result(narrow))  # all of a site is clipped as it is


def test_tasks_that_are_no_requests_are_refused(tmp_path):
    server = Server(tmp_path)
    record = json.loads(server.controller._offer().to_text())

    def offered(**fields):
        return {REQUEST: json.dumps(record | fields)}

    weaker = json.loads(json.dumps(record["channel"]))
    weaker["weights"][0][0] += 1  # less noise than certified
    other = "Expected an offer of this package's version"
    for match, headers in (
        ("a task without a request", {REQUEST: None}),
        ("session of 16 bytes, got 3", {SESSION: b"abc"}),
        (other, offered(format="x")),
        ("got 12|got 14|of 1 or of others|coordinates", offered(parts=["weight"])),
        (other, offered(parts=["weight", "weight"])),
        ("other than running statistics", offered(parts=[*LEFT])),
        (other, offered(channel=weaker)),
    ):
        task = asked(server)
        for name, value in headers.items():
            task.set_header(name, value)
        with pytest.raises(ValueError, match=match):
            passed(server.filters["va"], "va", task, lambda *_: result())
    none = asked(server)
    none["__headers__"] = 3
    with pytest.raises(ValueError, match="a task without a request"):
        request_in(none)
    with pytest.raises(ValueError, match="task data and for task results"):
        server.filters["va"].process(result(), context_of("va"))


def test_mechanisms_that_need_secure_sums_are_refused():
    for mechanism in (
        VectorMechanism(MECHANISM.channel, 1.0, "aggregate", 4),
        AdditiveMechanism("skellam", 1.0, 2.0, 4),
    ):
        with pytest.raises(
            ValueError, match=r"Expected a mechanism of local trust.*sums=WithHelper\(\.\.\.\)"
        ):
            QuantizeController(mechanism.record(), 1, "folder")


def test_hostile_answers_are_left_out_and_the_mean_is_that_of_the_others(tmp_path):
    """Codes of another site, session or mechanism, a second answer, and no answer at all."""
    server = Server(tmp_path, rounds=1, min_clients=1, patience=1)
    codes = {}

    def tamper(site, reply):
        codes[site] = reply
        return {
            "cleveland": [reply, reply],
            "hungary": codes["cleveland"],
            "va": DXO(DataKind.APP_DEFINED, {PAYLOAD: b"RQ" * 40}).to_shareable(),
        }[site]

    server.tamper = tamper
    server.run()
    assert server.sums[0].clients == server.controller._run.done == 1
    refused = [line for line in server.log if "dropped: Expected" in line]
    assert len(refused) == 3
    assert "got a second one" in refused[0]


@pytest.mark.parametrize("valid", [1, 2])
def test_a_round_needs_min_clients_valid_answers(valid, tmp_path):
    server = Server(tmp_path, rounds=1, min_clients=2, patience=1)
    server.tamper = lambda site, reply: reply if site in SITES[:valid] else []
    server.run()
    assert server.controller._run.done == (valid == 2)
    assert len(server.saved) == (valid == 2)


def test_an_answer_cannot_write_lines_of_its_own_into_the_servers_log(tmp_path):
    server = Server(tmp_path, rounds=1, patience=1)
    lines = "\nrandquant: the run, epsilon 0.1 " + "x" * 9000
    server.tamper = lambda site, reply: make_reply(lines)
    server.run()
    assert len(server.log) == 4  # the refusals in one line, the round twice, the panic
    assert all(text.isprintable() and len(text) < 700 for text in server.log)
    server.tamper = lambda site, reply: Shareable({"DXO": {"kind": 7, "data": [lines]}})
    server.run()
    assert all(text.isprintable() and len(text) < 700 for text in server.log)


def test_rounds_without_enough_answers_leave_the_model_and_stop_the_job(tmp_path):
    server = Server(tmp_path, lambda *_: make_reply(ReturnCode.EXECUTION_EXCEPTION), patience=2)
    server.run()
    assert server.saved == []
    assert server.controller._run.done == 0
    assert sum("failed, the model is as before" in line for line in server.log) == 2
    assert server.log[-1].startswith("panic")
    assert server.controller._run.accountant.get_privacy_spent().releases == 2 * 16  # asked twice
    # A site that fails has answered: whether its training fails may depend on its data.
    with server.filters["va"]._member(context_of("va")).ledger.locked() as ledger:
        assert ledger.accountant.get_privacy_spent().releases == 2 * 16


def test_a_round_of_some_coordinates_has_a_seed_of_its_own(tmp_path):
    some = VectorMechanism(MECHANISM.channel, clip_norm=1.0, coordinates=3)
    server = Server(tmp_path, mechanism=some, rounds=3).run()
    assert server.controller._run.done == 3
    assert server.controller._run.accountant.client_guarantee() == account(
        [some.release(14, 3)], 1e-5
    )
    assert not np.array_equal(server.saved[0]["weight"], server.saved[1]["weight"])


# What leaves a site beside codes

NONE = [
    "secret patient 7", "OK ", "ok", "", None, 7, b"OK", ["ERROR"], {"a": 1}, object(),
    np.array(["ERROR", "OK"]),
]  # fmt: skip
CODES = [ReturnCode.TASK_ABORTED, ReturnCode.EMPTY_RESULT]


@pytest.mark.parametrize("code", [*NONE, *CODES], ids=lambda code: repr(code)[:20])
def test_no_return_code_leaves_a_site_but_one_of_nvflares(code, tmp_path):
    known, failed = any(code is each for each in CODES), result()
    failed.set_return_code(code)
    try:
        reply = of_va(Server(tmp_path), failed)
    except ValueError:
        assert not known  # NVFlare replies with a code of its own
        return
    assert {*reply} == {"__headers__"}
    assert reply["__headers__"] == {"__rc__": code if known else ReturnCode.EXECUTION_EXCEPTION}
    assert type(reply.get_return_code()) is str


def test_nothing_but_codes_leaves_a_site(tmp_path):
    """Every field and header of a reply, whatever the executor puts into its result."""
    told = result(meta={"patients": 7})
    told["beside"] = "secret"
    for header in ("peer_props", "audit_event_id", "cookie_jar", "error", "patients"):
        told.set_header(f"__{header}__" if header != "patients" else header, "secret patient 7")
    reply = of_va(Server(tmp_path), told)
    assert {*reply} == {"__headers__", "DXO"}
    assert reply["__headers__"] == {"__content_type__": "DXO"}
    sent = {name: value for name, value in reply["DXO"].items() if value}
    assert {*sent.pop("data")} == {PAYLOAD}
    assert sent == {"kind": DataKind.APP_DEFINED}


def test_what_a_site_keeps_of_a_request_travels_with_no_message(tmp_path):
    """NVFlare sends the public properties of a context along."""
    context = context_of("va")
    before = context.get_all_public_props()
    context.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.IN, private=True, sticky=False)
    server = Server(tmp_path)
    server.filters["va"].process(asked(server), context)
    assert context.get_all_public_props() == before


BAD_NAMES = ["va\0", "C:va", "va\u202eb", "\u200fva", "va\n", "../va", "a/b", "", None, "va\u2066"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_site_of_another_name_is_refused_in_one_sentence(name, tmp_path):
    with pytest.raises(ValueError, match="Expected the name of a site in printable") as error:
        of_va(Server(tmp_path), result(), name)
    assert str(error.value).isprintable()
    assert not [*tmp_path.glob("sites/*")]


def test_a_server_leaves_a_site_of_another_name_out(tmp_path):
    server = Server(tmp_path, rounds=1)
    clients = [*server.get_clients(), SimpleNamespace(name="va\u202e")]
    server.get_clients = lambda: clients
    server.run()
    assert server.controller._run.done == 1
    [line] = [line for line in server.log if "a site is left out" in line]
    assert line.isprintable()

"""`randquant train`: the model and clients of a file, with the options of `randquant.train`."""

import contextlib
import dataclasses
import inspect
import json
import os
import re
from pathlib import Path

import command_line
import pytest
import torch
from by_name import VALUES
from made_runs import promise, record

import randquant as rq
from randquant import cli
from randquant.aggregation import AdditiveMechanism, ChannelMechanism, LocalGaussian
from randquant.cli import all_commands
from randquant.cli import train as command
from randquant.privacy import MODEL_TERMS
from randquant.training import (
    PLACES,
    RunStore,
    TrainConfig,
    execution,
    federated,
    load_parameters,
    read_finished,
)

ROOT = Path(__file__).parents[2]
OWN = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Shape:
    features: int = 4


def model():
    return nn.Linear(Shape().features, 2)


x = torch.randn(12, 6, 4, generator=torch.Generator().manual_seed(0))
clients = {f"phone {k}": (part, (part[:, 0] > 0).long()) for k, part in enumerate(x)}
test = clients["phone 0"]
"""
NOISE = "--mechanism local-gaussian --clip-norm 0.7 --noise-multiplier 4"
OTHERS = {"model", "clients", "loss", "test", "mechanism", "folder", "progress", "population",
          *VALUES}  # fmt: skip
"""Arguments of `randquant.train` that are in the file, or have an option of another name."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def arguments(source: str = OWN) -> dict:
    """What a file defines, as arguments of `randquant.train` in Python."""
    names: dict = {"__name__": "own"}
    torch.manual_seed(0)
    exec(compile(source.replace("@dataclass", ""), "own", "exec"), names)
    model = names["model"]() if inspect.isfunction(names["model"]) else names["model"]
    return {"model": model, "clients": names["clients"], "test": names["test"]}


class Stop(Exception):
    pass


@pytest.fixture
def asked(monkeypatch):
    """What a call of `randquant.train`, or a command, asks for; nothing is trained."""

    def begin(config, overrides, *others):
        caught.append((config, overrides))
        raise Stop

    caught: list = []
    monkeypatch.setattr(federated, "_train", begin)

    def asks(call):
        with pytest.raises(Stop):
            call()
        return caught.pop()

    return asks


def of_command(line: str):
    return lambda: cli.main(["train", "own.py", "--quiet", *line.split()])


def options() -> dict:
    return {each.name: each for each in all_commands()["train"].settings(())}


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_is_a_run_without_bars(quiet, here, monkeypatch):
    def train(*values, **settings):
        asked.append(settings["progress"])
        raise Stop

    asked = []
    monkeypatch.setattr(federated, "train", train)
    with pytest.raises(Stop):
        cli.main(["train", "own.py", "--epsilon=8", "--run=run", *["--quiet"] * quiet])
    assert asked == [not quiet]


# One set of options and defaults.


def test_the_options_are_the_arguments_of_train_with_its_defaults():
    signature = inspect.signature(rq.train).parameters
    own = {name: each.default for name, each in signature.items() if name not in OTHERS}
    usual = rq.Local().complete("client")
    for name, (part, within) in PLACES.items():
        if part in VALUES:
            own[name] = getattr(usual if part == "local" else VALUES[part](), within)
    no_words = {"public", "columns", "standardize", "on_round", "spent"}
    assert options().keys() == own.keys() - no_words | {"mechanism"}
    assert {name: options()[name].default for name in own.keys() - no_words} == {
        name: value for name, value in own.items() if name not in no_words
    }


def test_a_configuration_s_defaults_are_those_of_train():
    config = TrainConfig(rq.training.Task(1), "", cohort=1)
    signature = inspect.signature(rq.train).parameters
    for name in ("rounds", "delta", "trust", "seed", "server", "privacy"):
        assert getattr(config, name) == signature[name].default
    assert config.local == signature["local"].default.complete("client")
    assert config.stop_at_epsilon is signature["epsilon"].default is None


SAID = {
    "": {},
    "--epsilon 3": {"epsilon": 3.0},
    "--epsilon inf": {"epsilon": float("inf")},
    "--delta 1e-6": {"delta": 1e-6},
    "--rounds 7": {"rounds": 7},
    "--cohort 5": {"cohort": 5},
    "--trust local": {"trust": "local"},
    "--trust model": {"trust": "model"},
    "--seed 3": {"seed": 3},
    "--seed none": {},
    "--local-epochs 2": {"local": rq.Local(epochs=2)},
    "--batch 3": {"local": rq.Local(batch=3)},
    "--local-learning-rate 0.1": {"local": rq.Local(learning_rate=0.1)},
    "--local-learning-rate auto": {"local": rq.Local(learning_rate="auto")},
    "--parts w*": {"local": rq.Local(parts="w*")},
    "--frozen b*,bias": {"local": rq.Local(frozen=("b*", "bias"))},
    "--buffers frozen": {"local": rq.Local(buffers="frozen")},
    "--device cpu --threads 1": {"local": rq.Local(device="cpu", threads=1)},
    "--together false": {"local": rq.Local(together=False)},
    "--server-optimizer Adam --learning-rate 0.1": {"server": rq.Server("Adam", learning_rate=0.1)},
    "--server-options momentum=0.9": {"server": rq.Server(options={"momentum": 0.9})},
    "--evaluate-every 2": {"server": rq.Server(evaluate_every=2)},
    "--checkpoint-every 2": {"server": rq.Server(checkpoint_every=2)},
    "--baseline": {"server": rq.Server(baseline=True)},
    "--unit example": {"privacy": rq.Privacy(unit="example")},
    "--neighboring zero_out": {"privacy": rq.Privacy(neighboring="zero_out")},
    "--bits 3": {"privacy": rq.Privacy(bits=3)},
    "--bits auto": {"privacy": rq.Privacy(bits="auto")},
    "--clip-norm 0.5": {"privacy": rq.Privacy(clip_norm=0.5)},
    "--clip-norm none": {"privacy": rq.Privacy(clip_norm=None)},
    "--coordinates 9": {"privacy": rq.Privacy(coordinates=9)},
    "--noise parties": {"privacy": rq.Privacy(noise="parties")},
    "--sampling poisson": {"privacy": rq.Privacy(sampling="poisson")},
    "--max-participations 9": {"privacy": rq.Privacy(max_participations=9)},
    "--numbers loss:0:5,num-examples:0:9 --weighted-by num-examples": {
        "privacy": rq.Privacy(numbers=("loss:0:5", "num-examples:0:9"), weighted_by="num-examples")
    },
}


def test_every_option_is_compared_with_train():
    words = {word for line in SAID for word in line.split()}
    assert {cli.flag(name) for name in options()} - words == {"--mechanism"}


@pytest.mark.parametrize("line", SAID)
def test_an_option_gives_the_configuration_that_train_gives(line, here, asked):
    by_command, _ = asked(of_command(line))
    by_call, _ = asked(lambda: rq.train(**arguments(), **SAID[line]))
    assert by_command == by_call


@pytest.mark.filterwarnings("ignore:It depends on the task:UserWarning")
def test_a_command_trains_what_a_call_trains(here, capsys):
    line = "train own.py --epsilon 8 --rounds 3 --seed 1 --run run --quiet"
    result = command_line.as_json(capsys, line)
    run = rq.train(**arguments(), epsilon=8, rounds=3, seed=1, progress=False)
    assert RunStore(here / "run").config() == run.config
    assert result["guarantee"]["epsilon"] == run.guarantee.epsilon <= 8
    assert result["guarantee"]["simulated"]
    assert (result["accuracy"], result["bytes_per_upload"]) == (run.accuracy, run.upload_bytes)
    assert load_parameters(here / "run").tolist() == load_parameters(run.folder).tolist()
    assert result["report"] == str(here / "run" / "report.html")
    assert (here / "run" / "report.html").exists()
    out = "\n".join(command.finished_lines(here / "run", read_finished(here / "run")))
    assert str(run.guarantee) in out
    assert f"{run.upload_bytes} bytes a client and round" in out
    assert f"{run.accuracy:.4f}" in out


def test_an_engine_is_asked_for_by_its_name_and_gets_the_file(here, asked, monkeypatch):
    from randquant.integrations.flower import simulation

    opened = []

    @contextlib.contextmanager
    def engine(processes, modules):
        opened.append((processes, *modules))
        yield

    monkeypatch.setattr(simulation, "engine", engine)
    plain, engaged = (asked(of_command(line))[0] for line in ("", "--engine flower --processes 3"))
    assert plain == engaged
    [(processes, module)] = opened
    assert processes == 3
    assert module.Shape().features == 4


def test_a_number_of_processes_needs_an_engine(here, capsys):
    said = command_line.refused(capsys, "train own.py --epsilon 8 --processes 3")
    assert "got --processes 3 without an engine: add --engine flower." in said
    assert "flower" in command_line.refused(capsys, "train own.py --engine spark")


# A mechanism by its name.

CHANNEL = rq.rqm(clip=0.3, margin=0.3, levels=4, keep=0.4)
RQM = "--mechanism rqm --clip 0.3 --margin 0.3 --levels 4 --keep 0.4"


@pytest.mark.parametrize(
    ("line", "mechanism", "settings"),
    [
        (RQM, rq.VectorMechanism(CHANNEL, 1.0, "aggregate", 12), {}),
        (f"{RQM} --cohort 5", rq.VectorMechanism(CHANNEL, 1.0, "aggregate", 5), {"cohort": 5}),
        (
            f"{RQM} --clip-norm 0.5 --coordinates 9 --trust local --epsilon 3",
            rq.VectorMechanism(CHANNEL, 0.5, "local", coordinates=9),
            {"trust": "local", "epsilon": 3, "privacy": rq.Privacy(clip_norm=0.5)},
        ),
        (
            f"{RQM} --clip-norm none",
            ChannelMechanism(CHANNEL, "aggregate", 12),
            {"privacy": rq.Privacy(clip_norm=None)},
        ),
        (
            "--mechanism skellam --clip-norm 0.7 --noise-multiplier 4",
            AdditiveMechanism("skellam", clip_norm=0.7, noise_multiplier=4, cohort=12),
            {},
        ),
        (
            f"{NOISE} --unit example",
            LocalGaussian(0.7, 4.0),
            {"privacy": rq.Privacy(unit="example")},
        ),
        (
            f"{RQM} --trust model --cohort 4 --rounds 3",
            rq.VectorMechanism(CHANNEL, 1.0, "aggregate", 4),
            {"trust": "model", "cohort": 4, "rounds": 3},
        ),
    ],
)  # fmt: skip
def test_a_mechanism_by_its_name_is_that_mechanism_and_the_rest_is_as_usual(
    line, mechanism, settings, here, asked
):
    config, objects = asked(of_command(line))
    usual, wanted = asked(lambda: rq.train(**arguments(), mechanism=mechanism, **settings))
    assert objects.mechanism == wanted.mechanism
    assert config == usual


def test_what_a_mechanism_by_its_name_chose_by_itself_is_printed(here, capsys):
    given = {"mechanism": "pbm", "clip": 1.0, "theta": 0.35, "trials": 15}
    [note] = command._arguments(here / "own.py", given)[1]
    assert note.endswith("set mixing=0 (--mixing 0) to turn it off")
    assert command._arguments(here / "own.py", {**given, "mixing": 0.0})[1] == []
    command_line.printed(capsys, f"train own.py {NOISE} --rounds 1 --quiet --run run")
    run = read_finished(here / "run")
    assert f"{'':<14} {note}" in command.finished_lines(here / "run", run, [note])
    assert command.finished_json(here / "run", run, [note])["notes"] == [note]


RELIES = {
    "a helper": ("aggregate", True, "the helper of each sum alone, which must never see a model"),
    "its server": ("aggregate", True, "the helper of each sum, and the server as much again"),
    "models": ("model", False, MODEL_TERMS),
}


@pytest.mark.parametrize("kind", RELIES)
def test_a_finished_run_says_in_lines_on_whom_its_figure_relies(kind, tmp_path):
    trust, helped, said = RELIES[kind]
    run = record(promise(7.9, trust), trust=trust)
    plain = record(promise(7.9, "aggregate"), trust="aggregate")
    assert not any(said in line for line in command.finished_lines(tmp_path, plain))
    if helped:
        noise = {"clip_norm": 1.0, "noise_multiplier": 4.0, "clients": 5}
        parameters = {**noise, "server_noise": kind == "its server"}
        config = run.config.changed(mechanism="helper-noise", parameters=parameters)
        run = dataclasses.replace(run, config=config)
    assert any(said in line for line in command.finished_lines(tmp_path, run))


# What a file defines.


def test_a_file_may_define_what_no_word_can_say_and_options_change_it(here, asked):
    (here / "own.py").write_text(
        f"{OWN}\nimport randquant as rq\nfrom beside import loss\n"
        "local = rq.Local(epochs=3, batch=2)\nserver = rq.Server(on_round=print)\n"
        "privacy = rq.Privacy(bits=2)\nmechanism = rq.aggregation.LocalGaussian(1.0, 4.0)\n"
    )
    (here / "beside.py").write_text(
        "import torch\ndef loss(output, targets):\n"
        "    return torch.nn.functional.cross_entropy(output, targets)\n"
    )
    config, objects = asked(of_command("--batch 5"))
    assert (config.local.epochs, config.local.batch, config.privacy.bits) == (3, 5, 2)
    assert objects.mechanism == LocalGaussian(1.0, 4.0)
    assert config.task.loss == "beside:loss"
    _, other = asked(of_command(RQM))
    assert other.mechanism.channel == CHANNEL


def test_a_file_may_define_a_population_and_a_function_of_its_clients(here, asked):
    data = "data = clients\ndef clients(number):\n    return data[f'phone {number}']\n"
    (here / "own.py").write_text(f"{OWN}\n{data}population = 11\n")
    for line in ("", RQM):  # which is built for the cohort, and so for the population
        config, objects = asked(of_command(line))
        assert config.task.population == len(objects.problem.clients) == 11
        assert not objects.problem.clients.known


def test_random_numbers_of_a_file_are_the_same_in_every_call(here, asked):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    seen = {asked(of_command(line))[0].task.problem for line in ("", "", "--seed 3")}
    assert len(seen) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_a_file_that_was_changed_within_a_second_is_read_anew(here, asked):
    own = here / "own.py"
    written = own.stat().st_mtime
    first = asked(of_command(""))[0]
    own.write_text(OWN.replace("phone", "house"))
    os.utime(own, (written, written))  # same second, same size: what bytecode is recognised by
    assert asked(of_command(""))[0].task.problem != first.task.problem


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("clients = []", "no model among clients"),
        ("x = 1", "no model and no clients among x"),
        ("", "among nothing"),
        (OWN.replace("test =", "local = 3\ntest ="), "Local"),
        (OWN.replace("test =", "model = 3\ntest ="), "Module"),
        (f"{OWN}\nclients = {{}}", "at least one client"),
    ],
)
def test_a_file_that_cannot_be_trained_is_one_sentence(source, word, here, capsys):
    (here / "own.py").write_text(source)
    said = command_line.refused(capsys, "train own.py --epsilon 8 --quiet --batch 3")
    assert "Expected " in said
    assert word in said
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("", "epsilon, or a mechanism"),
        ("--epsilon 8 --cohort 13", "cohort"),
        ("--epsilon 8 --frozen x", "frozen"),
        ("--epsilon 8 --clip 3", "--clip"),
        ("--mechanism rqm --clip 3", "margin"),
        (f"{RQM} --cohort 13", "cohort"),
        ("--mechanism skellam --clip-norm 1 --noise-multiplier 18 --bits 4", "bits > "),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(line, word, here, capsys):
    said = command_line.refused(capsys, f"train own.py --quiet {line}")
    assert "Expected " in said
    assert word in said
    assert not list(here.glob("runs/*/run.sqlite"))


# The folder of a run.


def interrupted(monkeypatch, last: int):
    """Stop runs after a round, as Ctrl-C does."""
    real = federated._epsilon_text

    def stop(metrics):
        if metrics.round == last:
            raise KeyboardInterrupt
        return real(metrics)

    monkeypatch.setattr(federated, "_epsilon_text", stop)


def test_the_same_command_goes_on_with_a_run_that_was_stopped(here, capsys, monkeypatch):
    line = f"train own.py {NOISE} --rounds 4 --seed 1 --checkpoint-every 2 --quiet"
    with monkeypatch.context() as patched:
        interrupted(patched, 3)
        assert cli.main([*line.split(), "--run", "run"]) == 130
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert f"on record in {here / 'run'}: the same command goes on" in said
        assert "all rounds that were declared" in said
        assert cli.main(line.split()) == 130
        assert f"the same command with --run {here / 'runs' / 'own-1'} goes on" in (
            capsys.readouterr().err
        )
    for folder in ("run", "runs/own-1", "whole"):
        command_line.printed(capsys, f"{line} --run {folder}")
    whole = load_parameters(here / "whole").tolist()
    assert load_parameters(here / "run").tolist() == whole
    assert load_parameters(here / "runs" / "own-1").tolist() == whole


def test_what_may_change_may_be_changed_and_all_else_is_refused(here, capsys):
    line = f"train own.py {NOISE} --rounds 2 --seed 1 --run run --quiet"
    first = command_line.as_json(capsys, line)
    again = command_line.as_json(capsys, f"{line} --delta 1e-6")
    assert again["accuracy"] == first["accuracy"]
    assert again["guarantee"]["delta"] == 1e-6
    assert again["guarantee"]["epsilon"] > first["guarantee"]["epsilon"]
    for other, word in (("--batch 2", "batch"), ("--rounds 3", "rounds"), ("--seed 2", "seed")):
        changed = re.sub(rf"{other.split()[0]} \d+ ", "", line)
        assert word in command_line.refused(capsys, f"{changed} {other}")
    assert command_line.as_json(capsys, f"{line} --delta 1e-6") == {
        **again, "seconds": pytest.approx(again["seconds"], rel=1e3),
    }  # fmt: skip


def test_a_run_is_replaced_if_that_is_asked_for_and_other_files_are_kept(here, capsys):
    line = f"train own.py {NOISE} --rounds 1 --quiet --run run"
    command_line.printed(capsys, line)
    first = load_parameters(here / "run").tolist()
    command_line.printed(capsys, f"{line} --overwrite")
    assert load_parameters(here / "run").tolist() != first  # its key is another
    (here / "kept").mkdir()
    (here / "kept" / "letter").write_text("dear")
    for more in ("", "--overwrite"):
        said = command_line.refused(capsys, f"{line.replace('--run run', '--run kept')} {more}")
        assert "holds other files" in said
    assert (here / "kept" / "letter").read_text() == "dear"


def test_to_resume_is_to_give_the_same_command(here, capsys):
    said = command_line.refused(capsys, "train --resume runs/own-1")
    assert "the command that began the run, with --run" in said


def test_ctrl_c_before_the_first_round_says_that_nothing_was_sent(here, capsys, monkeypatch):
    def interrupt(*others, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(execution, "_train", interrupt)
    assert cli.main(["train", "own.py", *NOISE.split(), "--quiet"]) == 130
    assert "stopped before its first round" in capsys.readouterr().err


# What is said on the way.


def test_a_warning_is_a_line_and_advice_is_said_once(here, capsys, monkeypatch):
    advice = "Whatever you do, do less of it."
    summarized = execution._summary
    monkeypatch.setattr(
        execution, "_summary",
        lambda *given: dataclasses.replace(summarized(*given), advice=advice),
    )  # fmt: skip
    (here / "own.py").write_text(f"{OWN}\nimport warnings\nwarnings.warn('small data')\n")
    assert cli.main(["train", "own.py", *NOISE.split(), "--rounds", "1", "--quiet"]) == 0
    output = capsys.readouterr()
    assert output.err == "randquant train: small data\n"
    assert f"advice         {advice}" in output.out.splitlines()


def test_the_demo_is_the_first_code_of_the_readme():
    file = (ROOT / "examples" / "digits.py").read_text()
    first = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("\nrun = ")[0]
    lines = first.strip().splitlines()
    assert [line for line in lines if line not in file.splitlines() and line] == [
        "import randquant as rq"
    ]
    makefile = (ROOT / "Makefile").read_text()
    assert "randquant train examples/digits.py --epsilon 8 --baseline" in makefile
    assert command.COMMANDS["train"].example == "randquant train examples/digits.py --epsilon 8"


def test_what_a_file_prints_is_not_the_result(here, capsys):
    (here / "loud.py").write_text(OWN + "print('loud')\n")
    line = "train loud.py --run r --json --rounds 2 --mechanism local-gaussian --clip-norm 1"
    assert cli.main([*line.split(), "--noise-multiplier", "4"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rounds"] == 2
    assert "loud" in err
    (here / "ends.py").write_text("import sys\nsys.exit(0)\n")
    assert "got its exit with 0" in command_line.refused(capsys, "train ends.py")

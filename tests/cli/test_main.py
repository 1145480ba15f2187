import io
import os
import re
import subprocess
import sys

import pytest
from command_line import as_json, printed, refused

import randquant as rq
from randquant.cli import all_commands, parse
from randquant.cli import main as randquant_main

NOISE = "account gaussian --clip-norm 1 --noise-multiplier 1 --dimension 8 --rounds 4"
PAPER = "--clip 1.5 --margin 1.5 --levels 16 --keep 0.42"


def test_certify(capsys):
    result = as_json(capsys, f"certify rqm {PAPER} --order 8")
    certificate = rq.certify(rq.rqm(1.5, 1.5, 16, 0.42), 8.0)
    assert result["epsilon"] == {
        "lower": certificate.epsilon.lower,
        "upper": certificate.epsilon.upper,
    }
    assert sorted(map(abs, result["witness"])) == [1.4, 1.5]
    assert result["bias_max"] < 1e-9
    assert result["bits_per_coordinate"] == 4
    pair = as_json(capsys, f"certify rqm {PAPER} --order 1000 --pair 1.5 -1.5")
    assert pair["epsilon"]["upper"] == pytest.approx(5.46838, abs=5e-6)
    assert pair["covers"] == "this pair"
    negative = as_json(capsys, f"certify rqm {PAPER} --pair -1e-3 -1.5")
    assert negative["witness"] == [-0.001, -1.5]


def test_accountant(capsys):
    result = as_json(capsys, f"account rqm {PAPER} --dimension 650 --rounds 20 --delta 1e-5")
    assert 60_200 < result["epsilon"] < 60_300
    assert not {"lower", "epsilon_lower"} & set(result)
    assert result["per_coordinate"]["epsilon"]["upper"] == pytest.approx(5.469888567)
    assert (result["neighboring"], result["trust"]) == ("replace_one", "local")
    central = as_json(
        capsys, "account gaussian --clip 1 --noise-multiplier 4 --dimension 9 --rounds 5"
    )
    assert 3 < central["epsilon"] < 6
    assert central["trust"] == "central"
    summed = as_json(capsys, f"account rqm {PAPER} --dimension 650 --rounds 20 --trust aggregate")
    assert (summed["epsilon"], summed["trust"]) == (result["epsilon"], "aggregate")


WRONG = [
    ("certfy rqm", "did you mean certify?"),
    ("certify rqm --margni 1", "did you mean --margin?"),
    ("train own.py --coohrt 3", "did you mean --cohort?"),
    ("compare --clip 1 --bits 2 --epsilon 1 --mechanisms pbmm", "did you mean pbm?"),
    ("certify rqm --clip --margin 3", "the option --margin"),
    ("certify rqm --clip 1 --clip 2", "--clip once"),
    ("certify rqm 3", "no other values"),
    ("certify rqm --pair 1", "--pair"),
    ("certify", "MECHANISM"),
    ("account rqm --clip 1 --dimension 5", "--rounds"),
    ("compare --channel 'pbm", "--channel"),
    ("report", "folders"),
    ("train nofile.py", "nofile.py"),
    ("train", "FILE"),
    (f"{NOISE} --of-rounds 64", "--participation"),
    (f"{NOISE} --everybody-sends", "--participation"),
    (f"{NOISE} --trust model", "--participation"),
    (f"{NOISE} --participation poisson", "--of-rounds"),
    (f"{NOISE} --participation poisson --of-rounds 3", "rounds"),
    (f"{NOISE} --participation fixed --of-rounds 64 --everybody-sends", "poisson"),
    (f"{NOISE} --examples 20 --participation poisson --of-rounds 64", "participation that is seen"),
    (f"certify rqm {PAPER} --pair 9 0", "within"),
    (f"certify rqm {PAPER} --pair 1 0 --clients 2", "got --pair 1 0 and --clients 2"),
    (f"certify rqm {PAPER} --neighboring zero_out", "--clients"),
    (f"certify rqm {PAPER} --clients 2 --neighboring none", "zero_out"),
    (f"account rqm {PAPER} --dimension 5 --rounds 1 --trust central", "trust"),
    (
        "account erm --clip 1 --bins -3,-0.5,0.5,3 --gamma 1 --dimension 5 --rounds 1 "
        "--trust aggregate",
        "lattice=True",
    ),
    ("account clipped-sgd --clip 1 --dimension 5 --rounds 1", "protects"),
    ("account gaussian --noise-multiplier 2 --dimension 5 --rounds 1", "clip_norm"),
    ("account gaussian --clip 1 --noise-multiplier 1e308 --dimension 5 --rounds 1", "2e+100"),
    (f"account rqm {PAPER} --dimension 5 --rounds 1{'0' * 400}", "rounds"),
    ("certify rqm --clip 1e-40 --margin 0 --levels 16 --keep .4", "1e-30"),
    ("certify rqm --cl 1", "--cl"),
    ("design --clip 1 --values -3,3 --epsilon 0.1", "0.693148"),
    ("compare --clip 1 --bits 2", "--epsilon"),
    ("compare --channel pbm --clip 1", "either"),
    ("compare --channel pbm", "theta"),
    ("train own.py --threads 1000000000", "threads"),
    (f"account rqm {PAPER} --clip-norm -1 --dimension 5 --rounds 1", "clip_norm"),
    ("train own.py --learning-rate 1e39", "--learning-rate"),
    ("train --resume /nowhere", "got --resume"),
    ("train own.py --colour blue", "colour"),
    ("paint", "paint"),
    ("", "COMMAND"),
]


@pytest.mark.slow(after=32)
@pytest.mark.parametrize(("line", "word"), WRONG)
def test_what_is_wrong_is_one_line_and_exit_code_2(capsys, line, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, line)
    assert "Expected " in said
    assert word in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("command", all_commands())
def test_help_shows_an_example_that_parses(capsys, command):
    out = printed(capsys, f"{command} --help")
    example = re.search(r"example: randquant (.*)", " ".join(out.split())).group(1)
    invocation = parse(example.split())
    assert invocation is not None
    assert invocation.command is all_commands()[command]


EXTRAS = (
    "torch", "sklearn", "altair", "vl_convert", "dp_accounting", "optuna", "tensorboard", "nacl",
    "kymatio", "flwr",
)  # fmt: skip


def test_the_core_commands_run_without_any_extra():
    hide = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"
    lines = (
        f"certify rqm {PAPER}",
        f"account rqm {PAPER} --dimension 5 --rounds 1",
        "account stochastic-rounding --clip 0.05 --levels 2 --margin 0.3 --clip-norm 0.5 "
        "--dimension 650 --rounds 2 --cohort 40 --trust aggregate --delta 1e-5",
        "design --clip 1 --values -3,3 --epsilon 1",
        "compare --clip 1 --bits 1 --epsilon 1 --mechanisms pbm",
        f"audit rqm {PAPER} --audit-trials 100",
    )
    code = (
        f"{hide}from randquant.cli import main\n"
        f"for line in {lines!r}: assert main(line.split()) == 0, line\n"
        "raise SystemExit(main(['train', 'own.py']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "torch for training" in done.stderr
    assert "pip install '.[train]' in the folder of randquant's source" in done.stderr


INSTALLED = os.path.join(os.path.dirname(sys.executable), "randquant")


@pytest.mark.parametrize("command", [[INSTALLED], [sys.executable, "-m", "randquant"]])
def test_the_command_and_the_module_answer(command):
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("randquant ")


def test_a_reader_that_has_read_enough_gets_no_traceback():
    """As in `randquant certify … | head -1`."""
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "randquant", "certify", "pbm", "--theta", "0.2", "--trials", "3"]
    words += ["--clip", "1"]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_without_our_signs_gets_others(encoding, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    assert randquant_main(["--version"]) == 0
    print("∞ ≤ ☃", file=sys.stdout, flush=True)
    assert out.buffer.getvalue().decode(encoding).splitlines()[-1] == "inf <= ?"

"""Options from declarations: what help shows, what is meant, and what every wrong value says."""

import inspect
import re
import subprocess
import sys
from typing import Any, get_args, get_origin

import pytest
from command_line import printed, refused
from cyclopts import Token

from randquant._internal import declared
from randquant.cli import EVERYTHING, Option, all_commands, flag, function_options, given_channel
from randquant.mechanisms import register, stochastic_rounding, unregister


def test_every_option_of_a_run_has_its_meaning():
    options = all_commands()["train"].settings(())
    assert all(declared.text(option.hint) for option in options)
    assert all(option.group or declared.group(option.hint) for option in options)


def test_every_command_is_found_by_the_docstring_of_its_file():
    found = all_commands()
    assert list(found) == sorted(found)
    assert {"train", "certify", "plan"} <= found.keys()
    assert all(f"randquant {name} " in f"{each.example} " for name, each in found.items())


def declarations() -> list[tuple[str, Option]]:
    """Every option of every command, with a command line that is complete without it."""
    found = []
    for each in all_commands().values():
        options = function_options(each.run)
        if each.settings is not None:
            options = [*options[1:], *each.settings([EVERYTHING])]
        elif each.mechanisms is not None:
            options = options[1:]
        found += [(without(option, each.example), option) for option in options]
    return found


def without(option: Option, example: str) -> str:
    """A command's example without an option."""
    return re.sub(
        rf" {flag(option.name)}(?![\w-])( (?!--)\S+)*", "", example.removeprefix("randquant ")
    )


def parts(option: Option) -> int:
    """How many words make a value."""
    return max(len(get_args(leaf)) for leaf in [*declared.leaves(option.hint), tuple[int]]
               if get_origin(leaf) is tuple and ... not in get_args(leaf))  # fmt: skip


def wrong_for(option: Option) -> str | None:
    """A value that the declaration refuses; none if it takes any word."""
    if (
        option.default is False
        or option.repeats
        or option.kind is not inspect.Parameter.KEYWORD_ONLY
    ):
        return None
    words = "x " * parts(option)
    try:
        declared.check("", option.hint, declared.read("", option.hint, *words.split()))
    except (TypeError, ValueError):
        return words
    return None


WRONG = {
    f"{line} {flag(option.name)} {wrong}": option
    for line, option in declarations()
    if (wrong := wrong_for(option))
}


def test_most_options_have_a_wrong_value():
    assert len(WRONG) > 80
    assert {line.split()[0] for line in WRONG} == set(all_commands()) - {"report", "runs"}


@pytest.mark.slow(after=7)
@pytest.mark.parametrize("line", [line for line in WRONG if not line.startswith("train")])
def test_a_wrong_value_of_any_option_is_one_line(line, capsys):
    said = refused(capsys, line)
    assert "Expected " in said
    assert "x'" in said or "got x" in said


@pytest.mark.parametrize("line", [line for line in WRONG if line.startswith("train")])
def test_a_wrong_value_of_any_setting_of_a_run_is_one_sentence(line):
    option = WRONG[line]
    *_, parameter = get_args(option.parameter().annotation)
    with pytest.raises((ValueError, TypeError), match=f"^Expected .*{option.name[:3]}"):
        parameter.converter(Any, [Token(value="x") for _ in range(parts(option))])


def test_a_channel_is_read_from_words():
    assert given_channel("pbm clip=1 theta=0.2 trials=3") == (
        "pbm", {"clip": 1.0, "theta": 0.2, "trials": 3},
    )  # fmt: skip
    for text in ("pbm clip", "pbm colour=1", "pbm clip=1 clip=2"):
        with pytest.raises(ValueError, match="once each"):
            given_channel(text)


def test_a_mechanism_of_ones_own_has_its_options(capsys):
    def mine(clip: float, fine: bool = True, coarse: bool = False):
        return stochastic_rounding(clip, 4 + 2 * fine + 4 * coarse, 1.0)

    register("mine", mine, help={"fine": "six levels"})
    try:
        assert "six levels [default: True]" in printed(capsys, "certify mine --help")
        assert "mine: 8 codes" in printed(
            capsys, "certify mine --clip 1 --fine false --coarse true"
        )
        assert "mine: 6 codes" in printed(capsys, "certify mine --clip 1")
        assert "--fine to be true or false, got 'x'" in refused(capsys, "certify mine --fine x")
    finally:
        unregister("mine")


def test_help_and_version_import_no_command_and_nothing_slow():
    code = (
        "import sys\nfrom randquant.cli import main\n"
        "codes = [main([word]) for word in ('--help', '--version')]\n"
        "slow = ('torch', 'optuna', 'sklearn', 'scipy.optimize', 'randquant.cli.train')\n"
        "assert codes == [0, 0] and not [name for name in slow if name in sys.modules]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f" {name} " in done.stdout for name in all_commands())

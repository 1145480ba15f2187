"""Options that do not go together: each rule with a command against it."""

import pytest
from command_line import refused

CHANNEL = "rqm clip=1 margin=1 levels=4 keep=0.4"
COMMANDS = {
    "a channel and a target": (
        ["compare", "--channel", CHANNEL, "--epsilon", "1"], "--channel and --epsilon"),
    "a channel and curves of privacy against error": (
        ["compare", "--channel", CHANNEL, "--curves"], "--channel and --curves"),
    "half a target": (["compare", "--clip", "1"], "Expected --clip, --bits and --epsilon"),
    "no command": (["helper", "serve", "journal"], "--key FILE with serve"),
    "a key alone": (
        ["helper", "serve", "journal", "--key", "key.pem"], "--authority FILE with serve"),
    "a limit of serve with status": (
        ["helper", "status", "journal", "--epsilon", "3"], "no --epsilon with status, got 3.0"),
    "a limit of serve with keygen": (
        ["helper", "keygen", "key", "--most-sums", "9"], "no --most-sums with keygen, got 9"),
    "a host with serve": (
        ["helper", "serve", "journal", "--host", "here"], "no --host with serve, got here"),
    "a host with keygen": (
        ["helper", "keygen", "key", "--host", "here"], "no --host with keygen, got here"),
    "the delta of a limit that is not set": (
        ["helper", "serve", "journal", "--delta", "1e-9"], "--epsilon with --delta"),
    "the neighbours of a limit that is not set": (
        ["helper", "serve", "journal", "--neighboring", "zero_out"], "epsilon with --neighboring"),
    "uncovered coordinates of two runs": (
        ["report", "one", "other", "--uncovered"], "the folder of one run with --uncovered, got 2"),
}  # fmt: skip
"""By what is wrong: the command, and what it says."""


@pytest.mark.parametrize("wrong", COMMANDS)
def test_options_that_do_not_go_together_are_refused_and_none_is_dropped(
    wrong, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command, said = COMMANDS[wrong]
    assert said in refused(capsys, command)
    assert not list(tmp_path.iterdir())

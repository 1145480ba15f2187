"""No privacy figure on the command line is below the one that was computed."""

import json
import re

import pytest

from randquant import cli

RQM = "rqm --clip 1.5 --margin 1.5 --levels 4 --keep 0.42"
COMMANDS = [
    *(f"certify {RQM} --order {order}" for order in (1.5, 2, 3, 5, 8, 21)),
    *(f"certify {RQM} --order {order} --clients 2" for order in (2, 3)),
    *(f"certify {RQM} --order {order} --clients 2 --neighboring zero_out" for order in (2, 3)),
    *(
        f"account local-gaussian --clip-norm 1 --noise-multiplier 9 --dimension 10 "
        f"--rounds {rounds} --delta 1e-5"
        for rounds in range(1, 13)
    ),
]


@pytest.mark.parametrize("line", COMMANDS)
def test_no_epsilon_is_printed_below_what_was_computed(capsys, line):
    assert cli.main([*line.split(), "--json"]) == 0
    computed = json.loads(capsys.readouterr().out)["epsilon"]
    upper = computed["upper"] if isinstance(computed, dict) else computed
    assert cli.main(line.split()) == 0
    printed = re.search(r"epsilon <= ([\d.e+-]+)", capsys.readouterr().out)
    assert printed is not None
    assert upper <= float(printed[1]) <= upper * (1 + 2e-5)

"""The pages on the papers are true: commands run, and errata show what they say."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from randquant import cli as product
from randquant.privacy import round_up
from randquant_papers import cli, rank
from randquant_papers.sweep.spec import read as read_sweep

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


COMMANDS = [
    line.removeprefix("$ ")
    for page in PAGES
    for block in blocks(page.read_text(), "console")
    for line in block.splitlines()
    if line.startswith("$ randquant")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_pages_are_commands(command):
    program, *words = shlex.split(command)
    assert program == "randquant-papers"
    assert callable(cli.parser().parse_args(words).run)


def test_the_readme_links_every_page():
    readme = (DOCS.parent / "README.md").read_text()
    assert len(COMMANDS) > 6
    for path in DOCS.glob("*.md"):
        assert f"](docs/{path.name})" in readme, path.name


def test_the_sweeps_of_the_docs_are_sweeps():
    grid, search = (read_sweep(text) for text in blocks((DOCS / "sweeps.md").read_text(), "toml"))
    assert len(list(grid.grid())) == 10
    assert (search.trials, set(search.cases[0].ranges)) == (40, {"learning_rate", "clip", "margin"})


ERRATA = (DOCS / "errata.md").read_text()


def test_the_certificates_of_the_errata_show_what_they_say(capsys):
    """The leading figure of each certified row, rounded up to 6 digits, is in its row."""
    shown = 0
    for row in (line for line in ERRATA.splitlines() if "`randquant certify" in line):
        command = re.search(r"`randquant ([^`]*)`", row).group(1)
        pair = re.search(r"`(--pair [^`]*)`", row).group(1)
        for line in (command, f"{command} {pair}"):
            assert product.main([*shlex.split(line), "--json"]) == 0
            upper = json.loads(capsys.readouterr().out)["epsilon"]["upper"]
            assert ("infinite" if upper == "inf" else round_up(upper)) in row
            shown += 1
    assert shown == 8


def test_the_page_on_claims_shows_what_it_says(capsys):
    page = (DOCS / "check.md").read_text()
    printed, figures = blocks(page, "text")
    assert cli.main(shlex.split(blocks(page, "console")[0])[2:]) == 0
    assert capsys.readouterr().out == printed
    exec(blocks(page, "python")[0], {})
    assert capsys.readouterr().out == figures


def test_the_python_of_the_errata_shows_what_it_says():
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        for code in re.findall(r'`python -c "([^`]*)"`', ERRATA):
            exec(code, {})
    for figure in ("epsilon <= 6.39638", "5.06835", "4.10238"):
        assert figure in output.getvalue()
    *_, mvu, imvu = (line.split() for line in output.getvalue().splitlines())  # they cost the same
    assert [f"{float(value):.5f}" for value, _ in (mvu, imvu)] == ["1.15868"] * 2
    assert [round_up(float(epsilon)) for _, epsilon in (mvu, imvu)] == ["3.71235", "3.71234"]


def test_the_code_of_ranks_cites_propositions_that_are_there():
    """The proofs are numbered in order, and each of those that pay for a bound is cited."""
    page = (DOCS / "rank-theory.md").read_text()
    numbers = [
        int(number) for number in re.findall(r"^### Proposition (\d+) \(", page, re.MULTILINE)
    ]
    assert numbers == list(range(1, 12))
    cited = set()
    for path in Path(rank.__file__).parent.glob("*.py"):
        for first, second in re.findall(
            r"rank-theory\.md`?, Propositions? (\d+)(?: and (\d+))?", path.read_text()
        ):
            cited |= {int(number) for number in (first, second) if number}
    assert {1, 2, 3, 4, 5, 6, 7, 8} <= cited <= set(numbers)


def test_the_page_on_ranks_prints_what_it_says(capsys):
    page = (DOCS / "rank.md").read_text()
    exec(blocks(page, "python")[0], {})
    assert capsys.readouterr().out == blocks(page, "text")[0]

"""README and docs are true: code prints what they say, commands run, links lead."""

import contextlib
import importlib.util
import io
import json
import math
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from slow import slow

from randquant import cli
from randquant._internal import round_up
from randquant.aggregation import all_mechanisms
from randquant.cli import all_commands
from randquant.mechanisms import channel_mechanisms, unregister

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("papers/**/*.md")])
README = (ROOT / "README.md").read_text()
TASKS = [
    "train", "train-settings", "own-loop", "helper-sums", "proven-sums", "secure-aggregation",
    "secure-sum-costs", "standardize", "statistics", "statistics-on-engines", "plan",
    "plan-explained", "compare", "account-for-a-run", "certify", "sampling", "design", "audit",
    "command-line", "coming-from", "other-accounts",
]  # fmt: skip
"""Pages whose commands are run, and whose code prints what they say, like the README's."""
RUN = {"README.md": README, **{f"{n}.md": (DOCS / f"{n}.md").read_text() for n in TASKS}}
TRAINING = ("train", "runs", "report")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def commands(page: str) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ randquant")]


def output_of(code: str, names: dict | None = None) -> str:
    """What a page's code prints, run with these names."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "docs", "exec"), {} if names is None else names)
    return output.getvalue()


def followed_by_output(page: str, language: str) -> list[tuple[str, str]]:
    """Blocks of a language, each with the block of text that comes directly after it."""
    inside = r"((?:(?!```).)*)"
    return re.findall(rf"```{language}\n{inside}```\n+```text\n{inside}```", page, flags=re.DOTALL)


LONG = ("rq.train(", "rq.plan(")
EXAMPLES = {
    f"{name}-{place}": pytest.param(
        *example, marks=[pytest.mark.slow] * any(long in example[0] for long in LONG)
    )
    for name, page in RUN.items()
    for place, example in enumerate(followed_by_output(page, "python"))
}
SHORT = [
    command
    for page in RUN.values()
    for command in commands(page)
    if command.split()[1] not in TRAINING
]
"""Commands that each run in a few seconds."""
DESIGNED = [command for command in SHORT if command.startswith("randquant design --clip 1 --lev")]
OUTPUTS = {
    block.strip().removeprefix("$ "): output
    for page in RUN.values()
    for block, output in followed_by_output(page, "console")
    if block.startswith("$ randquant")
}
"""What a page says that a command prints: lines of its output."""


GUIDES = [page for page in sorted(DOCS.glob("*.md")) if page.stem != "certificate-file"]
"""All pages for users, but the specification of a format."""


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_page_for_users_is_short(page):
    """What stands behind it has pages of its own."""
    assert len(page.read_text().splitlines()) <= 120


def test_the_front_page_is_short():
    assert len(README.split()) <= 700


@pytest.mark.parametrize(
    ("page", "mark", "names"),
    [
        ("README", "]({}.md)", [path.stem for path in DOCS.glob("*.md") if path.stem != "README"]),
        ("mechanisms", "`{}`", all_mechanisms()),
        ("command-line", "`{}`", all_commands()),
    ],
)
def test_a_page_names_every_one(page, mark, names):
    text = (DOCS / f"{page}.md").read_text()
    assert not [name for name in names if mark.format(name) not in text]


@pytest.mark.parametrize(("code", "expected"), EXAMPLES.values(), ids=EXAMPLES.keys())
def test_the_python_of_the_docs_prints_what_they_say(code, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(code.splitlines()) <= 24
    assert unsigned(output_of(code)) == unsigned(expected)


def unsigned(text: str) -> str:
    """Which of two mirror-image pairs attains the worst case depends on rounding."""
    return text.replace("-", "")


def test_every_page_with_examples_is_among_them():
    assert {name.rsplit("-", 1)[0] for name in EXAMPLES} == {
        "README.md", "own-loop.md", "helper-sums.md", "account-for-a-run.md", "certify.md",
        "train.md", "plan.md", "proven-sums.md", "sampling.md", "statistics.md",
        "statistics-on-engines.md", "coming-from.md", "other-accounts.md",
        "secure-aggregation.md", "secure-sum-costs.md", "standardize.md",
    }  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [*(c for c in SHORT if c not in DESIGNED), *slow(*(c for c in SHORT if c in DESIGNED))],
)
def test_commands_of_the_docs_run(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    assert printed
    if command.startswith("randquant compare") and command in OUTPUTS:
        assert rounded(printed.partition("\n")[2]) == rounded(OUTPUTS[command])
        return
    if command.startswith("randquant account") and command in OUTPUTS:
        assert printed == OUTPUTS[command]  # nothing is left out
    for line in OUTPUTS.get(command, "").splitlines():
        assert line in printed.splitlines()


def test_every_output_of_the_docs_is_of_a_command_that_is_run():
    assert OUTPUTS.keys() <= set(SHORT)
    assert len(OUTPUTS) == 7


@pytest.mark.slow
def test_training_commands_of_the_docs_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    training = [
        command
        for page in ("README.md", "train.md", "train-settings.md")
        for command in commands(RUN[page])
        if command.split()[1] in TRAINING
    ]
    assert [command.split()[1] for command in training] == [*["train"] * 3, *TRAINING[1:]]
    for command in training:
        quiet = ["--quiet"] * (command.split()[1] == "train")
        assert cli.main([*shlex.split(command)[1:], *quiet]) == 0
        printed = capsys.readouterr().out
        assert re.search(r"epsilon(, \w+)? <=", printed) or "runs.html" in printed
        if command == "randquant report runs --output runs.html":
            made = len([*(tmp_path / "runs").rglob("run.sqlite")])  # with those without privacy
            assert f"{made} runs side by side" in (tmp_path / "runs.html").read_text()
    assert made >= 4


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not heading or heading in anchors(there), (target, heading)


def anchors(page: Path) -> set[str]:
    """What a code host and the site call the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings}


NOW = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""Pages about the code as it is; the change log tells of names that are gone."""
FOLDERS = r"(?:src|tests|benchmarks|examples|docs|papers)"
MENTIONED = {
    "name": re.compile(r"(?<![\w./-])(?:randquant|rq)(?:\.[A-Za-z]\w*)+"),
    "import": re.compile(r"from (randquant[\w.]*) import ((?:\w+(?: as \w+)?(?:, )?)+)"),
    "path": re.compile(rf"(?<![\w./-]){FOLDERS}/[\w./-]*\w|[\w/]+/\w+\.py\b"),
    "test": re.compile(r"(?<![\w./])test_\w+(?!\w*\.py)"),
}


def mentioned(kind: str, pages=NOW) -> dict[str, str]:
    """What the pages mention, each with a page where it stands."""
    found = {}
    for page in pages:
        for match in MENTIONED[kind].findall(page.read_text()):
            found[" ".join(match) if isinstance(match, tuple) else match] = page.name
    return found


def is_importable(name: str) -> bool:
    """Whether a dotted name is a module or something in one."""
    package, *parts = name.replace("rq.", "randquant.", 1).split(".")
    owner = importlib.import_module(package)
    for part in parts:
        if not hasattr(owner, part) and hasattr(owner, "__path__"):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(f"{owner.__name__}.{part}")
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True


def imported(pages) -> dict[str, str]:
    """What the pages import from the package, each with a page that does."""
    found = {}
    for line, page in mentioned("import", pages).items():
        module, *names = re.sub(r" as \w+|,", "", line).split()
        found |= {f"{module}.{name}": page for name in names}
    return found


def test_every_dotted_name_of_the_docs_exists():
    names = mentioned("name") | imported(NOW)
    assert "randquant.secure_sums.secagg" in names
    assert "randquant.aggregation.VectorMechanism" in names
    assert "rq.certify" in names
    assert not {name: page for name, page in names.items() if not is_importable(name)}
    assert not is_importable("randquant.aggregate")
    assert not is_importable("rq.certify.all_of_it")
    assert not is_importable("randquant.channels.encoding.no_such_function")


def test_the_docs_and_examples_import_nothing_private():
    names = imported([*NOW, *ROOT.glob("examples/**/*.py")])
    assert "randquant.flower.QuantizeMod" in names
    assert not {name: page for name, page in names.items() if "._" in name}
    assert not {name: page for name, page in names.items() if not is_importable(name)}


def test_every_path_of_the_docs_and_of_the_code_exists():
    """A path counts from the root or from docs, or is the end of one: `sums/chain.py`."""
    files = [
        path
        for folder in ("src", "benchmarks", "examples", "papers")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    paths = mentioned("path", [*NOW, *ROOT.glob("examples/**/*.md"), *files])
    assert "tests/audit/test_audit.py" in paths
    assert "docs/theory/vector-sums.md" in paths
    ends = tuple(path.as_posix() for path in files)
    assert not {
        path: page
        for path, page in paths.items()
        if not re.search("ROOM|MODULE|NAME", path)
        and not (ROOT / path).exists()
        and not (DOCS / path).exists()
        and not (ROOT / "papers" / path).exists()
        and not any(end.endswith(f"/{path}") for end in ends)
    }


def test_every_test_that_the_docs_name_exists():
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("papers/tests/test_*.py")]
    code = "".join(path.read_text() for path in files)
    names = mentioned("test")
    assert len(names) > 20
    assert not {name: page for name, page in names.items() if f"def {name}(" not in code}


def test_every_test_is_run_by_make_test_or_by_make_test_all():
    rules = re.findall(r"^(\S+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    recipes = {name: recipe.strip() for name, recipe in rules}
    assert recipes["test"] == '$(PYTEST) -m "not slow"'
    assert recipes["papers-test"] == '$(PYTEST) -m "not slow" $(PAPERS)'
    assert recipes["test-all"] == '$(PYTEST) -m "slow" tests src $(PAPERS)'
    assert (ROOT / ".ci" / "run").read_text().endswith("\nmake lint test test-all\n")


def result(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_figures_of_clipping_each_coordinate_are_the_measured_ones():
    run = result("fashion_mnist")
    accuracies, baseline = (
        ", ".join(f"{accuracy:.3f}" for accuracy in run[f"{name}_by_seed"])
        for name in ("accuracy", "baseline_accuracy")
    )
    assert (
        f"reaches {accuracies} (without privacy {baseline}), and epsilon <= "
        f"{round_up(run['guarantee']['epsilon'], grouped=True)}, which is **no protection**"
    ) in (DOCS / "benchmarks.md").read_text()


def test_the_time_of_a_certificate_is_the_measured_one():
    slowest = max(result("certify")["milliseconds_by_order"]["64 levels, 128 vertices"].values())
    assert f"64 levels and 128 vertices it takes up to {slowest:.0f} ms" in RUN["certify.md"]


@pytest.mark.parametrize("dataset", ["digits", "fashion-mnist"])
@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_the_accuracies_are_the_measured_ones(dataset, neighboring):
    """Of one bit, of its Gaussian twin and without privacy."""
    of = {
        run["mechanism"]: f"{run['accuracy']:.3f}"
        for run in result("private_training")["runs"]
        if (run["dataset"], run["neighboring"]) == (dataset, neighboring)
    }
    bit, twin, *plain = (of.get(n) for n in ("stochastic-rounding", "gaussian", "clipped-sgd"))
    cells = " | ".join([bit, twin, *filter(None, plain)])
    assert f"`{neighboring}` | {cells} |" in (DOCS / "benchmarks.md").read_text()


TINY = """
import torch
import randquant as rq
from randquant.aggregation import VectorMechanism

channel = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.7)
mechanism = VectorMechanism(channel, 1.0, "aggregate", 3)
x, y = torch.linspace(-1, 1, 24).reshape(12, 2), torch.arange(12) % 2
model, clients, test = torch.nn.Linear(2, 2), [(x[k::3], y[k::3]) for k in range(3)], (x, y)
"""


def test_the_privacy_statement_names_keys_of_a_run(tmp_path, monkeypatch, capsys):
    """The third column of its tables."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.py").write_text(TINY)
    assert cli.main(shlex.split("train tiny.py --epsilon 40 --rounds 2 --quiet --json")) == 0
    report = Path(json.loads(capsys.readouterr().out)["report"])
    found = json.loads(report.with_suffix(".facts.json").read_text())
    page = (DOCS / "privacy-statement.md").read_text()
    columns = [
        row.split(" | ")[-1] for row in re.findall(r"^\| .*\? \| .* \|$", page, re.MULTILINE)
    ]
    keys = {key for cell in columns for key in re.findall(r"`([a-z_.]+)`", cell)}
    keys -= {"client", "example"}  # values of guarantee.unit
    assert len(keys) > 15
    for key in keys:
        value = found
        for part in key.split("."):
            value = value[part]


def mean(numbers) -> float:
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def regret(row: dict) -> float:
    """Points by which untuned runs are above the grid's best, over the seeds that both have."""
    seeds = min(len(row["untuned"]), len(row["grid"]))
    return mean(row["untuned"][:seeds]) - mean(row["grid"][:seeds])


def test_the_results_of_the_readme_are_the_measured_ones():
    rows = [row for row in result("defaults")["rows"] if row["held_out"]]
    held_out = [[regret(row) for row in rows if row["epsilon"] == each] for each in (8, 2, 1)]
    assert {len(tasks) for tasks in held_out} == {9}
    linear = next(row for row in rows if row["task"] == "Fashion-MNIST, linear")
    points = {way: f"{mean(linear[way]):.0f}" for way in ("untuned", "grid")}
    peers = [f"{mean(linear[way]):.0f}" for way in ("flower_fixed", "flower_adaptive", "pfl")]
    runs = result("subsets")["runs"]
    sent = {
        bytes_: f"{bytes_:,}: {100 * mean(r['accuracy'] for r in runs if r['sent'] == way):.2f} %"
        for bytes_, way in ((449, 327), (203560, "no privacy"))
    }
    assert {run["upload_bytes"] for run in runs if run["sent"] == 327} == {449}
    sites = next(row for row in result("hospitals")["rows"] if row["epsilon"] == 2)
    shared = {way: f"{100 * sites[way]['mean']:.1f} %" for way in ("sums", "central", "hospitals")}
    attacks = {
        row["attack"]: 100 * row["accuracy"]
        for row in result("hostile")["tasks"]["digits"]["rows"]
        if row["share"] == 0.01
    }
    masked = attacks.pop("any vector")
    encoded = result("encode")
    millions = {
        way: f"{encoded[way]['coordinates_per_second_per_core'] / 1e6:.0f}"
        for way in ("encode_pack", "naive")
    }
    seconds = result("simulate")["cnn"]["milliseconds_per_round"]
    others = [row for row in rows if "recurrent" not in row["task"]]
    without = [mean(regret(row) for row in others if row["epsilon"] == e) for e in (8, 2, 1)]
    [honest] = [r for r in result("hostile")["tasks"]["digits"]["rows"] if r["attack"] == "none"]
    for figures in (
        f"| {', '.join(f'{mean(tasks):+.1f}' for tasks in held_out)} points | best of a grid; "
        f"{', '.join(f'{each:+.1f}' for each in without)} without the recurrent task |",
        f"(none: {100 * honest['accuracy']:.1f} %)",
        f"| {points['untuned']} % | {points['grid']} % best of grid; as in their examples: Flower "
        f"{peers[0]}, {peers[1]}, pfl {peers[2]} |",
        f"| {sent[449]} | {sent[203560]}, no privacy |",
        f"| {shared['sums']} | {shared['central']} trusted curator; {shared['hospitals']} without",
        f"| {min(attacks.values()):.1f} to {max(attacks.values()):.1f} % with proofs | "
        f"{masked:.1f} % with masks alone |",
        f"| {millions['encode_pack']} | {millions['naive']} plain torch |",
        f"| {seconds['ours']:.0f} ms | {seconds['pfl']:.0f} ms pfl |",
    ):
        assert figures in README


def test_the_errors_of_a_survival_curve_are_the_measured_ones():
    central, secure, local = result("survival")["rows"]
    page = (DOCS / "benchmarks.md").read_text()
    assert (
        f"is {secure['error']:.4f} in a secure sum and {central['error']:.4f} under central trust "
        f"({secure['tables']} tables each)"
    ) in page
    assert f"people are {secure['width']:.3f} wide, and {100 * secure['held']:.0f} of 100" in page
    assert local["width"] == 1  # "noise hides the curve"


def test_the_points_that_hostile_clients_cost_are_the_measured_ones():
    costs = [
        {
            (row["attack"], row["share"]): 100 * (task["rows"][0]["accuracy"] - row["accuracy"])
            for row in task["rows"]
        }
        for task in result("hostile")["tasks"].values()
    ]
    valid = [
        math.ceil(10 * max(cost for (attack, share), cost in each.items()
                           if share == 0.01 and not attack.startswith("any vector"))) / 10
        for each in costs
    ]  # fmt: skip
    known = [each["against the mean", 0.02] for each in costs]
    wrong = [
        cost
        for each in costs
        for (attack, _), cost in each.items()
        if attack in ("labels flipped", "minus its update", "the same, not clipped")
    ]
    assert all(each["against the mean", 0.05] > 60 for each in costs)
    for words in (
        f"cost at most {valid[0]:.1f} points on digits and {valid[1]:.1f} on Fashion-MNIST",
        f"2 % cost {known[0]:.1f} and {known[1]:.1f} points, and 5 % stop this training",
        f"cost {min(wrong):.1f} to {max(wrong):.1f} points",
    ):
        assert words in RUN["proven-sums.md"]


OWN, OWN_UPDATE = (
    (DOCS / f"{name}.md").read_text() for name in ("own-mechanism", "own-update-mechanism")
)


@pytest.fixture
def own_mechanism(tmp_path):
    """The page's file, and the registry as it was afterwards."""
    path = tmp_path / "response.py"
    path.write_text(blocks(OWN, "python")[0])
    before = channel_mechanisms()
    yield path
    for name in channel_mechanisms().keys() - before:
        unregister(name)


def test_the_python_of_the_own_mechanism_prints_what_it_says(own_mechanism):
    """Its certificate, and the tuning that meets a target."""
    names: dict = {"__name__": "response"}
    output_of(own_mechanism.read_text(), names)
    assert len(own_mechanism.read_text().splitlines()) <= 30
    first, tuned = blocks(OWN, "python")[1:]
    said = blocks(OWN, "text")
    assert unsigned(output_of(first, names)) == unsigned(said[0])
    assert output_of(tuned, names) == said[2]


def test_the_python_of_the_own_mechanism_for_updates_prints_what_it_says():
    [(whole, said)] = followed_by_output(OWN_UPDATE, "python")
    assert output_of(whole, {"__name__": "half"}) == said


def rounded(table: str) -> list[list[str]]:
    """Names and numbers of a comparison, to 3 digits: another libm may search another way."""
    rows = [line.split()[:8] for line in table.splitlines()[1:]]
    return [
        [name, *(f"{float(cell):.2e}" for k, cell in enumerate(cells) if k != 3)]
        for name, *cells in rows
    ]


@pytest.mark.slow
def test_the_commands_of_the_own_mechanism_run(own_mechanism, monkeypatch, capsys):
    monkeypatch.chdir(own_mechanism.parent)
    Path("digits.py").symlink_to(ROOT / "examples" / "digits.py")
    exec(compile(own_mechanism.read_text(), "response.py", "exec"), {"__name__": "response"})
    shown = []
    for line in "".join(blocks(OWN, "console")).splitlines():
        command = line.removeprefix("$ python response.py ")
        quiet = ["--quiet"] if command.startswith("train") else []
        assert cli.main([*shlex.split(command), *quiet]) == 0
        shown.append(capsys.readouterr().out)
    assert "epsilon <= 0.998528831" in shown[0]
    assert rounded(shown[1].partition("\n")[2]) == rounded(blocks(OWN, "text")[1])
    assert "test accuracy" in shown[2]
    example = re.search(r"`--channel '(.*?)'`", OWN).group(1)
    assert cli.main(["compare", "--channel", example]) == 0


def test_the_accuracy_of_hospitals_is_the_measured_one():
    page, found, shown = (ROOT / "docs" / "nvflare.md").read_text(), result("hospitals"), 0
    for row in found["rows"]:
        cells = [
            f"{100 * row[n]['mean']:.1f} ± {100 * row[n]['deviation']:.1f}" if n in row else "–"
            for n in ("hospitals", "sums", "central")
        ]
        private = row["epsilon"] is not None
        first = [f"{row['epsilon']:g}", f"{math.ceil(row['hospital']):,}"] if private else []
        shown += f"| {' | '.join([*(first or ['no privacy', '–']), *cells])} |" in page
        if private:
            assert row["patient"] <= row["epsilon"]
    assert shown == len(re.findall(r"^\|.* ± .*\|$", page, flags=re.MULTILINE)) == 4


def test_what_one_patient_costs_is_the_measured_one():
    page, cases = (DOCS / "one-patient.md").read_text(), result("hospital_models")["cases"]
    bound = math.ceil(1000 * max(abs(row["difference"]) for row in cases.values())) / 10
    assert f"differs from the curator's by less than {bound:g} points" in page
    assert {row["runs"] for row in cases.values()} == {30}
    assert len(cases) == 4


def test_what_a_private_app_takes_and_loses_is_the_measured_one():
    page, found = (DOCS / "one-patient.md").read_text(), result("hospital_app")
    counts = found["lines"]
    assert (
        f"{counts['new or changed']} lines are new or changed, {counts['gone or changed']} are gone"
        in page
    )
    for name, row in found["data"].items():
        assert (row["epsilon"], row["splits"]) == (8, 10)
        cells = [f"{100 * row[which]:.1f} %" for which in ("plain", "private")]
        lost = f"{100 * row['lost']:+.1f} ± {100 * row['error']:.1f}"
        assert f"| {name} | {' | '.join(cells)} | {lost} |" in page


def test_the_load_of_secure_sums_is_the_measured_one():
    theory, found = (ROOT / "docs" / "theory" / "shares.md").read_text(), result("secagg_load")
    page = (ROOT / "docs" / "secure-sum-costs.md").read_text()
    cases = [case for case in found["cases"].values() if "exact" in case]
    assert len(cases) >= 15
    shown = 0
    for case in cases:
        assert case["exact"]
        row = (
            f"| {case['clients']:,} | {case['neighbours']} | {case['code_bits']} "
            f"| {100 * case['loss']:g} % | {case['in_sum']:,} "
            f"| {1e3 * case['client_seconds']:.0f} ms | {case['server_seconds']:.2g} s "
            f"| {case['peak_mb']:,.0f} MB |"
        )
        assert row in theory
        shown += row in page
    assert shown == len(re.findall(r"MB \|$", page, flags=re.MULTILINE)) == 5


def test_the_seconds_of_rounds_on_flower_are_the_measured_ones():
    page = (ROOT / "docs" / "flower-costs.md").read_text()
    kinds = {"": "among", "_helper": "helper"}
    for name, kind in kinds.items():
        found = result(f"flower_rounds{name}")["ways"]
        assert {"plain", kind, "plain-trained", f"{kind}-trained"} <= found.keys()
        for way in found.values():
            figures = f"{way['messages']} | {way['mean']:.1f} | {way['over_fedavg']:.2f}"
            assert f"| {way['what']} | {figures} |" in page


def test_the_bytes_of_secure_sums_are_the_counted_ones(monkeypatch):
    page, found = (ROOT / "docs" / "secure-sum-costs.md").read_text(), result("secagg_traffic")
    ten, all_others = found["10 neighbours"], found["39 neighbours"]
    for row, name in (
        ("masked vector, up", "masked vector, up"),
        ("handshake (all other steps), up", "handshake, up"),
        ("handshake (all other steps), down", "handshake, down"),
    ):
        assert f"| {row} | {ten[name]:,} | {all_others[name]:,} |" in page
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import secagg

    # Counted again, for the protocol may have changed.
    assert secagg.measured_traffic(10) == ten


def test_the_bytes_of_a_subset_are_the_counted_ones():
    page, found = (ROOT / "docs" / "secure-sum-costs.md").read_text(), result("wire")
    whole = found["all_coordinates"]
    figures = [found["secagg_plus"], found["floats"], whole["any_sum"], whole["narrow"]]
    for codes in (found["one_bit"], found["ternary"]):
        figures += [codes["masked_vector_up"], codes["other_steps_up"]]
        assert codes["all_up"] <= 160_000
        assert codes["wrap_probability_of_a_round"] <= 1e-8
        assert codes["epsilon"] <= 8
    for figure in figures:
        assert f" | {figure:,} |" in page
    assert found["ternary"]["deviation"] <= 1.005 * found["one_bit"]["deviation"]


def test_the_performance_page_is_what_was_measured():
    spec = importlib.util.spec_from_file_location(
        "performance_page", ROOT / "benchmarks" / "performance_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "performance.md").read_text() == module.page()
    pictures = module.pictures()
    for name, drawn in pictures.items():
        assert f"](images/{name})" in module.page()
        assert (ROOT / "docs" / "images" / name).read_text() == drawn
        assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    kept = {path.name for path in (ROOT / "docs" / "images").glob("performance-*")}
    assert kept == pictures.keys()


def test_the_page_of_growth_is_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import growth_page

    page, pictures = (
        growth_page.page(),
        growth_page.pictures(growth_page.result("growth")["curves"]),
    )
    assert (DOCS / "growth.md").read_text() == page
    for name, drawn in pictures.items():
        assert f"](images/{name})" in page
        assert (DOCS / "images" / name).read_text() == drawn
    assert {path.name for path in (DOCS / "images").glob("growth-*")} == pictures.keys()


def test_costs_are_extrapolated_along_both_curves(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import growth_page

    def row(clients, coordinates):
        return {"clients": clients, "coordinates": coordinates,
                "seconds": 1e-9 * clients * coordinates}  # fmt: skip

    curves = {
        "clients": [row(clients, 10**5) for clients in (30, 100, 300, 1000)],
        "coordinates": [row(100, coordinates) for coordinates in (10**4, 10**5, 10**6)],
    }
    assert growth_page.grown(curves, "seconds") == pytest.approx(1e-9 * 10**13, rel=1e-4)
    quadratic = [{"clients": n, "mb": n * n / 100} for n in (10, 100, 1000)]
    assert growth_page.exponent(quadratic, "clients", "mb") == 2
    assert growth_page.exponent(quadratic, "clients", "mb", 1e6) is None

"""A plan as text, as JSON and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from randquant._internal import formatting
from randquant._internal.formatting import count, minus, round_up, to_json
from randquant.aggregation.mechanism import describe_influence
from randquant.mechanisms.registry import channel_mechanisms, notes_on
from randquant.planning.plans import Candidate, DecodedError, Need, Plan, code, other_guarantee
from randquant.privacy.accounting.accountant import other_relation, other_relation_lines
from randquant.privacy.guarantee import MODEL_TERMS
from randquant.reports import pages
from randquant.reports.figures import Axis, Figure, Mark, ScatterPlot, Series
from randquant.reports.notebook import Facts
from randquant.reports.pages import CodeLine, DataTable, Notes, Section

ERRORS = ("mechanism", "deviation", "/ Gaussian", "noise / mean", "of the run")
PARTS = ("mechanism", "coordinates", "bytes up", "deviation")


def as_text(plan: Plan) -> list[str]:
    """Write a plan as lines for a terminal."""
    need = plan.need
    rows = [_cells(entry, need) for entry in plan.entries if entry.noise is not None]
    for name, deviation, *relative in (_limit(each.name, each.noise) for each in plan.limits):
        rows.append([name, deviation, *[""] * 3, *relative, *[""] * 3])
    lines = [*_target(plan), "", *formatting.text(_columns(need), rows)]
    if plan.parts:
        columns = (*PARTS, *_relations(need))
        lines += ["", f"{_assumed(plan)}:", *formatting.text(columns, _parts(plan))]
    missing = [f"{e.mechanism}: {e.remark}" for e in plan.entries if e.noise is None]
    missing += [*_left_out(plan), *_defaults(plan)]
    lines += ["", *missing] if missing else []
    lines += ["", *_meaning(plan), "", *plan.advice]
    if plan.recommended is not None:
        tolerance = f"{100 * (need.tolerated - 1):.0f} % of the least error"
        lines += [
            "",
            f"recommended (fewest bytes of those within {tolerance}):",
            f"  {code(plan.recommended, need)}",
            *(f"  {line}" for line in _guaranteed(plan)),
        ]
    return lines


def as_json(plan: Plan) -> dict[str, Any]:
    """Convert a plan to the JSON object that the command prints."""
    best = plan.recommended
    return {
        "need": plan.need,
        "entries": [_with_other(entry, plan.need) for entry in plan.entries],
        "limits": list(plan.limits),
        "verdict": plan.verdict,
        "kept": plan.kept,
        "hostile": _hostile(plan),
        "advice": list(plan.advice),
        "recommended": None if best is None else best.mechanism,
        "other_relation": plan.other_relation,
        "code": None if best is None else code(best, plan.need),
        "left_out": list(plan.left_out),
        "parts": [_with_other(part, plan.need) for part in plan.parts],
        "notes": _defaults(plan),
    }


def figures(plan: Plan) -> list[Figure]:
    """Draw mechanisms by a client's bytes and by error; a note names those out of reach.

    A mark is filled if no other mechanism is at least as good in both.
    """
    points = [
        (e.mechanism, e.bytes_up, e.noise.deviation) for e in plan.entries if e.noise is not None
    ]
    series = []
    for label, size, deviation in points:
        # Equal in both is not dominated: of two such mechanisms neither is better.
        dominated = any(
            upload_bytes <= size and error <= deviation
            for _, upload_bytes, error in points
            if (upload_bytes, error) != (size, deviation)
        )
        text = f"{label}: error {deviation:.4g}, {formatting.byte_size(size)} in a round"
        mark = Mark(label, text, size, deviation, not dominated)
        series.append(Series(label, (mark,)))
    notes = ["Full marks: no other has a smaller error for as few bytes. Dashed: limits."]
    # A mechanism that cannot meet the target has no error to draw, but must not vanish.
    if missing := [entry.mechanism for entry in plan.entries if entry.noise is None]:
        notes.append(f"Out of reach: {', '.join(missing)}.")
    chart = ScatterPlot(
        title="Error of a round's decoded mean against bytes sent",
        note=" ".join(notes),
        series=tuple(series),
        x=Axis("bytes a client sends in a round (log scale)", log=True),
        y=Axis("error of a coordinate (log scale)", log=True),
        levels=tuple((limit.name, limit.noise.deviation) for limit in plan.limits),
    )
    return [chart]


def facts(plan: Plan) -> Facts:
    """Return a table of mechanisms and limits by error."""
    candidates = [(entry.mechanism, entry) for entry in plan.entries]
    candidates += [
        (f"{part.mechanism}, {part.coordinates:,} coordinates", part) for part in plan.parts
    ]
    rows = [
        (
            name + " (recommended)" * (entry is plan.recommended),
            f"{entry.noise.deviation:.4g}",
            f"{entry.bytes_up:,}",
            *_epsilons(entry, plan.need),
        )
        for name, entry in candidates
        if entry.noise is not None
    ]
    rows += [(e.mechanism, "out of reach", *[""] * 3) for e in plan.entries if e.noise is None]
    rows += [(limit.name, f"{limit.noise.deviation:.4g}", *[""] * 3) for limit in plan.limits]
    relations = (name.replace("epsilon", "ε ≤") for name in _relations(plan.need))
    return f"Plan: {plan.verdict}", ("mechanism", "error", "bytes up", *relations), rows


def page(plan: Plan) -> str:
    """Write a plan as the text of one HTML page.

    Guarantees:
        The page is self-contained: it refers to nothing outside itself, its policy allows no
        script but its own, and it says everything without that script.
        A printed epsilon is never below the accountant's.
    """
    need = plan.need
    rows = [_typeset(_cells(entry, need)) for entry in plan.entries if entry.noise is not None]
    limits = [[*map(minus, _limit(limit.name, limit.noise))] for limit in plan.limits]
    missing = [(e.mechanism, e.remark) for e in plan.entries if e.noise is None]
    limited = DataTable("Limits", ERRORS, limits, "numbers")
    reasons = DataTable("Out of reach", ("mechanism", "reason"), missing, "claims")
    # A plan that somebody made by hand may have no advice.
    verdict, *expected = plan.advice or ("",)
    sections = [
        Section("", [Notes(_target(plan))], columns=False),
        Section("What to expect", [Notes(expected)] if expected else [], columns=False),
        Section("", figures(plan) if rows else [], columns=False),
        Section(
            "", [DataTable("Mechanisms by error", _columns(need), rows, "compared")], columns=False
        ),
        Section(
            "",
            [limited, Notes([*_meaning(plan), *_left_out(plan), *_defaults(plan)])],
            columns=False,
        ),
        Section("", [reasons] if missing else [], columns=False),
    ]
    if plan.parts:
        columns = (*PARTS, *_relations(need))
        table = DataTable("Fewer coordinates", columns, _parts(plan), "numbers")
        sections.append(Section("", [table, Notes([f"{_assumed(plan)}."])], columns=False))
    if plan.recommended is not None:
        line = CodeLine(code(plan.recommended, plan.need))
        sections.append(Section("Recommended", [line, Notes(_guaranteed(plan))], columns=False))
    sections.append(
        pages.coverage_without_data(
            "Everything that one client would send in the whole run, by the printed epsilon.",
            "Errors are those of noise and rounding and say nothing of the task. A length of the "
            "means, or a threshold, that was found by looking at clients' data costs what no "
            "figure here counts.",
        )
    )
    title = _TITLES[plan.verdict]
    return pages.report("randquant plan", "A plan", title, verdict, sections)


_TITLES = {
    "useful": "Useful accuracy is to be expected",
    "doubtful": "Useful accuracy is doubtful",
    "hopeless": "Hardly anything can be learnt",
}


def _parts(plan: Plan) -> list[list[str]]:
    # Mechanism by mechanism: all coordinates, if it can send them, then fewer of them.
    names = dict.fromkeys(part.mechanism for part in plan.parts)
    return [
        [
            part.mechanism,
            f"{part.coordinates or plan.need.setting.size:,}" + " *" * (part is plan.recommended),
            f"{part.bytes_up:,}",
            f"{part.noise.deviation:.4g}",
            *_epsilons(part, plan.need),
        ]
        for name in names
        for part in [*plan.entries, *plan.parts]
        if part.mechanism == name
        if part.noise is not None
    ]


def _assumed(plan: Plan) -> str:
    return (
        "With fewer coordinates, if the mean of a round's clipped "
        f"updates has length {plan.need.mean_norm:g} (* fewest bytes within 5 % of least error)"
    )


def _target(plan: Plan) -> list[str]:
    # The first lines: what the plan was asked for.
    need, bits = plan.need, plan.need.privacy.bits
    return [
        f"{need.dimension:,} parameters, {need.cohort:,} of {need.population:,} clients a round, "
        f"{count(need.rounds, 'round')}, updates of L2 norm {need.clip_norm:g}, "
        + ("as few bits as do" if bits == "auto" else f"{count(bits, 'bit')} at most"),
        f"epsilon <= {formatting.exact(need.epsilon)} at delta = {need.delta} for one client's "
        f"whole participation ({need.privacy.neighboring}, {need.trust} trust)",
        *_participation(need),
    ]


def _guaranteed(plan: Plan) -> list[str]:
    # Of the recommended mechanism: its guarantee under each neighbouring relation.
    stated = None if plan.recommended is None else plan.recommended.guarantee
    return [] if stated is None else [str(stated), *other_relation_lines(plan.other_relation)]


def _participation(need: Need) -> list[str]:
    hidden = need.cohorts
    if hidden is None:
        # If it is seen who takes part, the bound holds only if the cohorts keep to this number.
        balanced = " (all equally often)" if need.participations == need.balanced else ""
        return [
            f"a client takes part in at most {count(need.participations, 'round')}{balanced}: "
            "cohorts must be drawn accordingly; no amplification by sampling is assumed"
        ]
    draws = {
        "fixed": f"every cohort of {need.cohort:,} is equally likely, in every round anew",
        "poisson": "each client takes part in each round independently, and sends an update of "
        "zeros in all others",
    }
    return [f"{draws[hidden.draw]}; nobody learns who takes part", f"terms: {MODEL_TERMS}"]


def _meaning(plan: Plan) -> list[str]:
    # Bytes are those of the message under the trust in force: masks are wider than codes.
    message = "packed codes, header included"
    if plan.need.trust != "local":
        message = f"a vector masked for a sum of {plan.need.setting.cohort:,}, header included"
    return [
        "deviation: root mean squared error of one coordinate of a round's decoded mean (a biased "
        "mean is rescaled first); / Gaussian: relative to the first limit",
        "noise / mean: norm of that error over clip_norm, the largest norm of a mean; "
        "of the run: norm of all rounds' errors over the largest norm of the sum of their means",
        f"bytes up: of one client in one round ({message}); as codes: without masks, as a server "
        "would see them; all rounds: bytes up of all clients",
        *_hostile(plan),
    ]


def _hostile(plan: Plan) -> list[str]:
    # Only in a sum: under local trust the server sees each update, and can leave it out.
    need = plan.need
    if plan.recommended is None or need.trust == "local":
        return []
    # Under model trust absent clients may send zeros: more are summed than are divided by.
    line = describe_influence(plan.mechanism, need.dimension, need.setting.cohort, need.cohort)
    return [line] if line else []


def _columns(need: Need) -> tuple[str, ...]:
    # What decides comes first: a phone shows a few columns, and scrolls to the others.
    decisive = (*ERRORS[:2], "bytes up", *_relations(need))
    return (*decisive, *ERRORS[2:], "as codes", "all rounds", "parameters")


def _relations(need: Need) -> tuple[str, str]:
    # Columns of `_epsilons`.
    stated = need.privacy.neighboring
    return f"epsilon, {stated}", f"epsilon, {other_relation(stated)}"


def _epsilons(entry: Candidate, need: Need) -> tuple[str, str]:
    # The figure of the plan's relation, and that of the other one if it is derived.
    assert entry.guarantee is not None
    other = other_guarantee(entry, need)
    return round_up(entry.guarantee.epsilon), "" if other is None else round_up(other.epsilon)


def _with_other(entry: Candidate, need: Need) -> dict[str, Any]:
    return {**to_json(entry), "other_relation": to_json(other_guarantee(entry, need))}


def _cells(entry: Candidate, need: Need) -> list[str]:
    assert entry.noise is not None
    name = entry.mechanism + (" (baseline)" if entry.baseline else "")
    name, deviation, *relative = _limit(name, entry.noise)
    return [
        name, deviation, f"{entry.bytes_up:,}", *_epsilons(entry, need), *relative,
        f"{entry.bytes_plain:,}",
        f"{entry.bytes_run:,}" if entry.bytes_run < 10**10 else f"{entry.bytes_run:.3e}",
        _settings(entry),
    ]  # fmt: skip


def _limit(name: str, noise: DecodedError) -> list[str]:
    relative = "-" if noise.relative is None else f"{noise.relative:.3f}"
    numbers = [f"{noise.deviation:.4g}", relative, f"{noise.length:.4g}", f"{noise.share:.3g}"]
    return [name, *numbers]


def _left_out(plan: Plan) -> list[str]:
    if not plan.left_out:
        return []
    return [
        f"not calibrated, since it takes longer: {', '.join(plan.left_out)}; "
        "--mechanisms all adds them"
    ]


def _defaults(plan: Plan) -> list[str]:
    # Notes on parameters that mechanisms chose themselves, each sentence once.
    calibrated = [entry for entry in (*plan.entries, *plan.parts) if entry.noise is not None]
    return list(
        dict.fromkeys(note for e in calibrated for note in notes_on(e.mechanism, e.parameters))
    )


def _settings(entry: Candidate) -> str:
    def formatted(value: Any) -> str:
        if isinstance(value, list):
            return f"{len(value)} from {value[0]:g} to {value[-1]:g}"
        return f"{value:g}" if isinstance(value, float) else str(value)

    text = " ".join(f"{name}={formatted(value)}" for name, value in entry.parameters.items())
    # Channels are applied to rotated updates: their parameters refer to these.
    rotated = entry.mechanism in channel_mechanisms()
    remark = f" ({entry.remark})" if entry.remark else ""
    return f"{text}{' after rotation' if rotated else ''}{remark}"


def _typeset(cells: Sequence[str]) -> list[str]:
    name, *numbers, last = cells
    return [name, *map(minus, numbers), last]

"""Whatever library a setting's number is of, it is taken as the number that it is."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from settings import ALL_CALLS, KINDS, differences, foreign, half, of_kind

import randquant as rq
from randquant import planning
from randquant._internal import validate
from randquant.aggregation import HelperNoise, LocalGaussian
from randquant.mechanisms import DiscreteGaussian, UpdateSetting
from randquant.planning import gaussian_multiplier
from randquant.privacy import HiddenCohorts
from randquant.rounds import RunAccountant, WithHelper

SOURCE = Path(rq.__file__).parent
SLOW = {"plan", "at_equal_epsilon", "RunAccountant", "for_target", "tune_update", "train"}

REALS = (
    np.float16, np.float32, np.float64, np.longdouble, np.array, Fraction, Decimal, torch.tensor,
    lambda x: np.array(x, np.float32), lambda x: np.array(Decimal(x)), np.int8, np.array,
    lambda x: torch.tensor(x, dtype=torch.bfloat16),
)  # fmt: skip
WHOLES = (np.int8, np.uint64, np.longlong, np.array, torch.tensor, lambda n: np.array(n, np.uint8))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in ALL_CALLS]
)
def test_a_call_gives_the_same_for_a_number_of_any_library(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = ALL_CALLS[name]
    plain = {argument: half(value) for argument, value in call.with_values().items()}
    wanted = call.function(**plain)
    assert not list(foreign(wanted))
    for kind in KINDS:
        given = {argument: of_kind(half(v), kind) for argument, v in call.with_values().items()}
        assert not list(differences(wanted, call.function(**given))), kind


def test_a_number_that_is_not_converted_is_found_out():
    """By what is stored, by what is computed, and by what cannot be."""
    of_few_bits = of_kind([0.5, 100], "of few bits")
    for function in (lambda x, n: [x], lambda x, n: x / 3, lambda x, n: float(x / 3)):
        assert list(differences(function(0.5, 100), function(*of_few_bits)))
    assert list(foreign([np.float64(1.0)]))
    for each in of_kind([0.5, 100], "opaque"):
        for calculate in (lambda x: x * 2, lambda x: x < 2, hash):
            with pytest.raises(TypeError):
                calculate(each)


@pytest.mark.parametrize("make", REALS)
def test_a_real_number_of_any_library_becomes_a_float(make):
    for value in (2.0, 96.0):
        for found in (validate.real("x", make(value)), validate.renyi_order(make(value))):
            assert (type(found), found) == (float, value)


@pytest.mark.parametrize("make", WHOLES)
def test_a_whole_number_of_any_library_becomes_an_int(make):
    found = validate.whole("n", make(100), low=1)
    assert (type(found), found, found * 1000) == (int, 100, 100_000)


def test_a_number_of_few_bits_is_the_double_that_it_is_exactly():
    tenth = np.float32(0.1)
    exact = float(Fraction(13421773, 2**27))
    assert validate.real("x", tenth) == exact != 0.1
    assert validate.real("x", Decimal("0.1")) == validate.real("x", Fraction(1, 10)) == 0.1
    for make in (
        lambda x: rq.GaussianRelease(x, 10, 3),
        lambda x: rq.Sampled(rq.GaussianRelease(1.0, 10, 1), x, 300, "fixed"),
        lambda x: LocalGaussian(1.0, x).release(10, 3),
    ):
        assert rq.account([make(tenth)], 1e-5) == rq.account([make(exact)], 1e-5)
    # In half precision its square, and the bound, were infinite.
    assert rq.account([rq.GaussianRelease(np.float16(300), 10, 3)], 1e-5).epsilon < 0.05
    assert DiscreteGaussian(np.float16(300)).variance * 1000 == 300_000


def test_a_whole_number_of_few_bits_does_not_wrap_around():
    many = rq.ChannelRelease(rq.stochastic_rounding(1.0, 2, 1.0), np.int8(100), np.int8(100))
    assert many.releases == 10_000
    assert many == rq.ChannelRelease(rq.stochastic_rounding(1.0, 2, 1.0), 100, 100)


EPSILON, DELTA, COUNT = (0.0, -1.0), (-0.1, 0.0, 1.0), (0, -1)
OUT_OF_BOUNDS = {  # call: {setting: numbers that it must not be}
    "account": {"delta": (-0.1, 1.0)},
    "calibrate": {"epsilon": EPSILON, "delta": (-0.1, 1.0), "dimension": COUNT, "rounds": (-1,),
                  "examples": COUNT},
    "plan": {"population": COUNT, "cohort": (0, 21), "rounds": COUNT, "delta": (-0.1, 1.0),
             "epsilon": (*EPSILON, 2e6)},
    "gaussian_multiplier": {"epsilon": EPSILON, "delta": (-0.1, 1.0), "rounds": COUNT},
    "at_equal_epsilon": {"epsilon": EPSILON},
    "GaussianSteps.step": {"noise_multiplier": (-1.0,), "rate": (0.0, 1.1), "times": COUNT,
                           "count_noise": (-1.0,)},
    "GaussianSteps.epsilon": {"delta": (-0.1, 1.0)},
    "GaussianRelease": {"dimension": COUNT, "rounds": (-1,), "relative_deviation": (-1.0,)},
    "Sampled": {"rate": (0.0, 1.1), "rounds": (-1,)},
    "Quantiles": {"steps": (1, 1025)},
    "KaplanMeier": {"until": (0.0, -1.0), "bins": (0, 501)},
    "survey": {"epsilon": (*EPSILON, 65.0), "delta": (0.0, 0.2), "clients": COUNT, "most": COUNT,
               "records": (-1,)},
    "Survey": {"delta": DELTA, "most": COUNT, "bits": (1, 65), "cohort": (1, 0)},
    "Local": {"epochs": COUNT, "batch": COUNT, "learning_rate": (-0.1,), "threads": COUNT},
    "Server": {"evaluate_every": COUNT, "checkpoint_every": (-1,)},
    "TrainConfig": {"cohort": COUNT, "rounds": COUNT, "delta": (-0.1, 1.0),
                    "stop_at_epsilon": EPSILON},
    "sample_poisson": {"population": COUNT, "rate": (0.0, 1.1)},
    "capped_cohorts": {"population": COUNT, "cohort": (0, 101), "rounds": COUNT,
                       "max_participations": COUNT},
    "Offer": {"dimension": (*COUNT, 2**41), "examples": COUNT},
    "ClientLimits": {"epsilon": EPSILON, "delta": DELTA, "colluders": (-1,), "examples": COUNT,
                     "threshold": (0.0, 1.1), "epsilon_alone": EPSILON, "clip_norm": (0.0, 1e31)},
    "QuantizeMod": {"epsilon": EPSILON, "delta": DELTA, "threshold": (0.0, 1.1)},
    "RunAccountant": {"delta": DELTA, "max_epsilon": EPSILON, "count": COUNT, "other": DELTA,
                      "limit": (-1.0,)},
    "AmongClients": {"neighbours": COUNT, "least": COUNT, "step_timeout": (0.0, -1.0)},
    "within": {"epsilon": EPSILON, "delta": DELTA, "examples": COUNT},
    "for_target": {"epsilon": EPSILON, "rounds": COUNT, "cohort": (1, 0), "clients": (49,),
                   "delta": (-0.1, 1.0), "dropouts": (-1, 50)},
    "JobOptions": {"learning_rate": (0.0, -0.1), "patience": COUNT, "timeout": COUNT},
    "QuantizeController": {"rounds": COUNT, "stop_at_epsilon": EPSILON, "delta": DELTA,
                           "min_clients": COUNT},
    "Losses.graph": {"step": (-0.1, 1.0), "colluders": (-1,), "failure": (0.0, 1.1),
                     "exposure": (0.0, 1.1)},
    "Terms": {"bits": (0, 33), "least": (1, 4), "dimension": COUNT, "neighbours": COUNT},
    "HelperTerms": {"cohort": COUNT, "least": (1, 101), "dimension": COUNT, "bits": (0, 33)},
    "HelperLimits": {"least": (1,), "most_sums": COUNT, "clients": (1,), "coordinates": COUNT,
                     "masks": COUNT, "least_noise": (-1.0,)},
}  # fmt: skip
NAMED = {"other": "delta", "limit": "epsilon", "stop_at_epsilon": "epsilon"}
"""Settings by the names that messages have, where they have another."""


@pytest.mark.parametrize(
    ("name", "setting"), [(n, s) for n, settings in OUT_OF_BOUNDS.items() for s in settings]
)
def test_a_number_out_of_bounds_is_refused_with_its_settings_name(name, setting):
    call = ALL_CALLS[name]
    for value in OUT_OF_BOUNDS[name][setting]:
        with pytest.raises(ValueError, match=f"Expected .*{NAMED.get(setting, setting)}"):
            call.function(**call.with_values(**{setting: value}))


FLAGS = [
    (name, parameter.name)
    for name, call in ALL_CALLS.items()
    for parameter in inspect.signature(call.function).parameters.values()
    if "bool" in str(parameter.annotation) and "_internal" not in call.function.__module__
]


@pytest.mark.parametrize(("name", "flag"), FLAGS)
@pytest.mark.parametrize("wrong", ["false", 0])
def test_a_flag_is_true_or_false(name, flag, wrong):
    """A text of a file, "false", would count as true: numbers as stable, cohorts as hidden."""
    call = ALL_CALLS[name]
    with pytest.raises((TypeError, ValueError), match=f"Expected {flag} to be "):
        call.function(**call.with_values(**{flag: wrong}))


def test_flags_of_what_has_no_call_of_its_own():
    with pytest.raises(TypeError, match="Expected stable to be True or False, got 'false'"):
        RunAccountant(1e-5, stable="false")
    with pytest.raises(TypeError, match="Expected stable_numbers to be True or False, got 'false'"):
        WithHelper(SimpleNamespace(answer=print), stable_numbers="false")
    with pytest.raises(TypeError, match="Expected server_noise to be True or False, got 'false'"):
        HelperNoise(1.0, 4.0, clients=5, server_noise="false")
    assert {("AmongClients", "stable_numbers"), ("Sampled", "hidden")} <= set(FLAGS)


@pytest.mark.parametrize(
    "wrong",
    [
        True, np.True_, torch.tensor(True), np.array([0.5, 0.5]), np.array([0.5]), torch.ones(1),
        "0.5", None, 1j, np.complex64(1), np.timedelta64(1, "s"), np.array(1, "timedelta64[ns]"),
        np.datetime64(1, "s"), np.array("0.5"), [0.5],
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused_with_what_came(wrong):
    shown = re.escape(validate.shown(wrong))
    for check in (validate.real, validate.whole):
        with pytest.raises(TypeError, match=f"Expected rate to be a .*number, got {shown}"):
            check("rate", wrong)
    with pytest.raises(TypeError, match=f"Expected rate to be a number, got {shown}"):
        rq.Sampled(rq.GaussianRelease(1.0, 10, 1), wrong, 3)
    with pytest.raises((TypeError, ValueError), match="Expected"):
        rq.Privacy(max_participations=wrong if wrong is not None else 0)


@pytest.mark.parametrize("make", [np.float16, np.float64, np.array, torch.tensor, Decimal])
def test_what_is_not_finite_is_refused_with_what_came(make):
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=f"finite number, got relative_deviation={value}"):
            rq.GaussianRelease(make(value), 10, 1)
    for number in (10**400, Fraction(10**400), Decimal("1e400")):
        with pytest.raises(ValueError, match="finite number, got relative_deviation=inf"):
            rq.GaussianRelease(number, 10, 1)


def test_a_fraction_is_no_whole_number():
    for wrong in (4.0, np.float32(4), torch.tensor(4.0), Decimal(4), Fraction(4), Fraction(9, 2)):
        with pytest.raises(TypeError, match="Expected rounds to be a whole number, got"):
            rq.GaussianRelease(1.0, 10, wrong)


CHECKS = ("real", "whole", "renyi_order")
FIELD = re.compile(r"self\.\w+")


def unused(text: str) -> list[str]:
    """Arguments that a function of this source checks, and then uses as they came.

    Fields of a dataclass are stored by `convert_numbers`, or by the `__post_init__` of a base that
    calls it, before they are checked. A function that only checks has `check` in its name.
    """
    functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
    return [name for each in functions if "check_" not in each.name for name in _unused(each)]


def _unused(function: ast.FunctionDef) -> list[str]:
    nodes = list(ast.walk(function))
    returned = {id(part) for n in nodes if isinstance(n, ast.Return) for part in ast.walk(n)}
    asked = {id(n.left) for n in nodes if isinstance(n, ast.Compare)}  # x is None
    loaded = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    names = [each.id for each in loaded if id(each) not in asked]
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    arguments = {each.arg for each in function.args.args + function.args.kwonlyargs} - stored
    found = []
    for call in (n for n in nodes if isinstance(n, ast.Call) and _checks(n.func)):
        name = ast.unparse(call.args[-1])
        if name in arguments and names.count(name) > 1 and id(call) not in returned:
            found.append(f"{function.name}: {name}")
    dropped = [n.value for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    if not {"convert_numbers", "checked", "__post_init__"} & {
        n.attr for n in nodes if isinstance(n, ast.Attribute)
    }:
        fields = [ast.unparse(call.args[-1]) for call in dropped if _checks(call.func)]
        found += [f"{function.name}: {each}" for each in fields if FIELD.fullmatch(each)]
    return found


def _checks(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and (
        isinstance(function.value, ast.Name)
        and (function.value.id, function.attr) in {("validate", each) for each in CHECKS}
    )


def test_what_a_check_returns_is_what_is_used():
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    found = {path.relative_to(SOURCE).as_posix(): unused(text) for path, text in texts.items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_an_argument_that_is_used_as_it_came_is_found():
    assert unused("def f(x):\n    validate.real('x', x)\n    return x\n") == ["f: x"]
    assert unused("def f(x):\n    y = g(validate.real('x', x)) + x\n") == ["f: x"]
    assert not unused("def f(x):\n    x = validate.real('x', x)\n    return x\n")
    assert not unused("def f(x):\n    return validate.real('x', x)\n")
    field = "class A:\n    def __post_init__(self):\n        validate.real('x', self.x)\n"
    assert unused(field) == ["__post_init__: self.x"]


BIT, NARROW = rq.stochastic_rounding(1.0, 2, 3.0), rq.stochastic_rounding(1.0, 2, 1.0)
ONE, ABSENT = rq.GaussianRelease(1.0, 10, 1), rq.GaussianRelease(2.0, 10, 1, "central", "zero_out")


def accounted(kind, quick=True):
    return lambda **given: rq.account([kind(**given)], 1e-5, quick=quick)


def stepped(given=None, **step):
    """The guarantee of one step."""
    steps = rq.GaussianSteps(**given or {})
    steps.step(**step)
    return steps.guarantee(1e-5)


def epsilons(found):
    """What is compared: an epsilon, the noise for one, an error."""
    if isinstance(found, rq.Guarantee | rq.Certificate | rq.SumCertificate):
        return getattr(found.epsilon, "upper", found.epsilon)
    return getattr(found, "noise", getattr(found, "upper", found))


MORE, LESS, OTHER = "more", "less", "another result"
COUNTING = {
    "account": (rq.account, {"releases": [ONE], "delta": 1e-5},
        {"releases": ([ONE, ONE], MORE), "delta": (1e-7, MORE)}, {"quick", "start_order"}),
    "ChannelRelease": (accounted(rq.ChannelRelease),
        {"channel": BIT, "dimension": 10, "rounds": 3, "trust": "aggregate",
         "neighboring": "replace_one", "cohort": 9},
        {"channel": (NARROW, MORE), "dimension": (20, MORE), "rounds": (6, MORE),
         "trust": ({"trust": "local", "cohort": 1}, MORE), "neighboring": ("zero_out", LESS),
         "cohort": (4, MORE)}, set()),
    "VectorRelease": (accounted(rq.VectorRelease),
        {"channel": BIT, "clip_norm": 1.0, "dimension": 10, "rounds": 3, "trust": "aggregate",
         "neighboring": "replace_one", "cohort": 9, "examples": 5},
        {"channel": (NARROW, MORE), "clip_norm": (2.0, MORE), "dimension": (20, OTHER),
         "rounds": (6, MORE), "trust": ({"trust": "local", "cohort": 1}, MORE),
         "neighboring": ("zero_out", LESS), "cohort": (4, MORE), "examples": (10, LESS),
         "whole_norm": (4.0, MORE)}, set()),
    "GaussianRelease": (accounted(rq.GaussianRelease),
        {"relative_deviation": 1.0, "dimension": 10, "rounds": 3},
        {"relative_deviation": (2.0, LESS), "dimension": (20, OTHER), "rounds": (6, MORE),
         "trust": ("local", OTHER), "neighboring": ("zero_out", OTHER),
         "one_example": (True, OTHER)}, set()),
    "Sampled": (accounted(rq.Sampled, quick=False), {"release": ONE, "rate": 0.1, "rounds": 30},
        {"release": (rq.GaussianRelease(2.0, 10, 1), LESS), "rate": (0.2, MORE),
         "rounds": (60, MORE), "absent": (ABSENT, OTHER),
         "scheme": ({"release": ABSENT, "scheme": "fixed", "absent": ONE}, OTHER),
         "hidden": ({"release": rq.GaussianRelease(1.0, 10, 1, "local"), "hidden": True}, OTHER),
         "models": (True, OTHER)}, set()),
    "Sampled.from_cohort": (accounted(rq.Sampled.from_cohort),
        {"release": ONE, "population": 100, "cohort": 10, "rounds": 30},
        {"release": (rq.GaussianRelease(2.0, 10, 1), LESS), "population": (200, LESS),
         "cohort": (20, MORE), "rounds": (60, MORE),
         "absent": ({"release": ABSENT, "absent": ONE}, OTHER), "models": (True, OTHER)}, set()),
    "GaussianSteps": (lambda **given: stepped(given, noise_multiplier=1.0),
        {"neighboring": "replace_one"},
        {"neighboring": ("zero_out", LESS), "unit": ("client", OTHER)}, set()),
    "GaussianSteps.step": (stepped, {"noise_multiplier": 1.0, "times": 3},
        {"noise_multiplier": (2.0, LESS), "times": (6, MORE), "count_noise": (2.0, MORE),
         "drawn": ({"drawn": "fixed", "rate": 0.1}, LESS),
         "rate": ({"drawn": "poisson", "rate": 0.1}, LESS)}, {"self"}),
    "certify": (rq.certify, {"channel": BIT, "order": 4.0},
        {"channel": (NARROW, MORE), "order": (8.0, MORE), "neighboring": ("zero_out", LESS)},
        set()),
    "certify_pair": (rq.certify_pair, {"channel": BIT, "x": 0.5, "other": -0.5, "order": 4.0},
        {"channel": (NARROW, MORE), "x": (1.0, MORE), "other": (-1.0, MORE), "order": (8.0, MORE)},
        set()),
    "certify_sum": (rq.certify_sum, {"channel": BIT, "clients": 5, "order": 4.0},
        {"channel": (NARROW, MORE), "clients": (2, MORE), "order": (16.0, MORE),
         "neighboring": ("zero_out", LESS)}, set()),
    "kappa": (rq.kappa, {"channel": BIT, "order": 4.0},
        {"channel": (NARROW, MORE), "order": (8.0, MORE), "neighboring": ("zero_out", LESS),
         "farthest": (0.01, LESS)}, set()),
    "kappa_sum": (rq.kappa_sum, {"channel": BIT, "clients": 3, "order": 8.0},
        {"channel": (NARROW, MORE), "clients": (2, MORE), "order": (16.0, MORE),
         "neighboring": ("zero_out", LESS), "farthest": (0.01, LESS)}, set()),
    "squared_distance": (rq.squared_distance, {"channel": BIT, "distance": 0.5, "dimension": 9},
        {"channel": (rq.stochastic_rounding(0.1, 2, 1.0), LESS), "distance": (1.0, MORE),
         "dimension": (1, OTHER)}, set()),
    "calibrate": (rq.calibrate,
        {"build": lambda z: LocalGaussian(1.0, 2 * z), "epsilon": 4.0, "delta": 1e-5,
         "dimension": 10, "rounds": 3},
        {"build": (lambda z: LocalGaussian(1.0, z), MORE), "epsilon": (2.0, MORE),
         "delta": (1e-7, MORE), "dimension": (20, OTHER), "rounds": (6, MORE),
         "neighboring": ("zero_out", LESS), "examples": (5, LESS), "reach": ((8.0, 9.0), MORE),
         "cohorts": (HiddenCohorts("fixed", 100, 10, 3), OTHER)}, {"start"}),
    "tune_update": (lambda **given: planning.tune_update(**given).calibration,
        {"name": "local-gaussian", "setting": UpdateSetting(10, 10, 1), "epsilon": 4.0,
         "delta": 1e-5, "rounds": 3, "deviation": 1.0},
        {"name": ("sign-sgd", OTHER),
         "setting": (UpdateSetting(10, 10, 1, neighboring="zero_out"), LESS),
         "epsilon": (2.0, MORE), "delta": (1e-7, MORE), "rounds": (6, MORE),
         "examples": (5, LESS), "cohorts": (HiddenCohorts("fixed", 100, 10, 3), OTHER)},
        {"deviation"}),
    "gaussian_multiplier": (gaussian_multiplier, {"epsilon": 4.0, "delta": 1e-5, "rounds": 3},
        {"epsilon": (2.0, MORE), "delta": (1e-7, MORE), "rounds": (6, MORE)}, set()),
    "compare": (lambda **given: given and rq.compare(**given).entries,
        {"clip": 1.0, "bits": 2, "epsilon": 1.0, "mechanisms": ["rqm"]},
        {"clip": (2.0, OTHER), "bits": (1, OTHER), "epsilon": (2.0, OTHER),
         "objective": ("mse", OTHER), "order": (4.0, OTHER), "mechanisms": (["pbm"], OTHER)},
        set()),
}  # fmt: skip
"""What users call in privacy and planning: settings, others and what each must do to the result;
those that only say where a search begins, or how long it may take."""


@functools.cache
def unchanged(name):
    function, base, _, _ = COUNTING[name]
    return function(**base)


@pytest.mark.parametrize(
    ("name", "setting"), [(n, s) for n, each in COUNTING.items() for s in each[2]]
)
def test_a_setting_that_is_changed_changes_the_result(name, setting):
    function, base, settings, _ = COUNTING[name]
    value, effect = settings[setting]
    before = unchanged(name)
    after = function(**{**base, **(value if isinstance(value, dict) else {setting: value})})
    assert list(differences(before, after))
    if effect != OTHER:
        assert (epsilons(after) > epsilons(before)) == (effect == MORE)
        assert epsilons(after) != epsilons(before)


def test_every_setting_is_among_those_that_are_changed():
    for name, (_, base, settings, searching) in COUNTING.items():
        called = {"tune_update": planning.tune_update, "gaussian_multiplier": gaussian_multiplier}
        function = called.get(name) or functools.reduce(getattr, name.split("."), rq)
        assert {*inspect.signature(function).parameters} == {*settings, *searching}, name
        assert {*base} <= {*settings, *searching}

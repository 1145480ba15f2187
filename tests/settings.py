"""Calls of what users call, with settings as numbers of every library, and a strict comparison."""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.serverapp.strategy import FedAvg
from refusals import CALLS, CHANNEL, VECTOR, Call

import randquant as rq
from randquant import planning, privacy, training
from randquant.aggregation import (
    AdditiveMechanism,
    AuxiliaryNumbers,
    CoordinateError,
    Projection,
    Rotation,
    Subset,
)
from randquant.flower import (
    AmongClients,
    ClientLimits,
    Offer,
    QuantizedStrategy,
    QuantizeMod,
    RoundEvent,
    RunAccountant,
    WithHelper,
)
from randquant.integrations import JobOptions, QuantizeController
from randquant.mechanisms import (
    Binomial,
    CoordinateTarget,
    DiscreteGaussian,
    DiscreteLaplace,
    Skellam,
    UpdateSetting,
)
from randquant.planning import gaussian_multiplier, tradeoffs
from randquant.privacy import HiddenCohorts, LaplaceRelease, NoiseRelease, amplified
from randquant.rounds import within
from randquant.secure_sums import Helper, HelperKey, HelperLimits, HelperTerms, Losses, Terms
from randquant.training import Task, schedule


class Opaque:
    """A number that nobody can calculate with before it is converted."""

    __hash__ = None

    def __init__(self, value: float) -> None:
        self.value = value


class OpaqueReal(Opaque):
    def __float__(self) -> float:
        return self.value


class OpaqueWhole(Opaque):
    def __int__(self) -> int:
        return self.value


numbers.Real.register(OpaqueReal)
numbers.Integral.register(OpaqueWhole)

WHOLES = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


def smallest(number: int) -> Any:
    """A whole number of NumPy in the shortest type that holds it: any arithmetic overflows."""
    return next(kind(number) for kind in WHOLES if np.iinfo(kind).max >= abs(number))


KINDS: dict[str, tuple[Callable[[float], Any], Callable[[int], Any]]] = {
    "of few bits": (np.float16, smallest),
    "opaque": (OpaqueReal, OpaqueWhole),
}
"""What a float and an int are made of, by name; each of exactly the same value."""


def half(value: Any) -> Any:
    """The same settings in numbers that float16 holds exactly."""
    if type(value) is float and math.isfinite(value):
        found = float(np.float16(value))
        assert found or not value, value
        return found
    return _inside(value, half)


def of_kind(value: Any, kind: str) -> Any:
    """The same settings in numbers of another kind."""
    if type(value) in (int, float) and math.isfinite(value):
        return KINDS[kind][type(value) is int](value)
    return _inside(value, lambda each: of_kind(each, kind))


def _inside(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(change, value))
    if type(value) is dict:
        return {name: change(each) for name, each in value.items()}
    return value


def differences(one: Any, other: Any, where: str = "it") -> Iterator[str]:
    """Where two values differ, in their types or to the last digit."""
    if type(one) is not type(other):
        yield f"{where}: {type(one).__name__} and {type(other).__name__}"
    elif isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.tolist() != other.tolist():
            yield f"{where}: {one!r} and {other!r}"
    elif isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or not torch.equal(one, other):
            yield f"{where}: {one!r} and {other!r}"
    elif isinstance(one, Mapping):
        yield from differences(list(one.items()), list(other.items()), where)
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield f"{where}: {len(one)} and {len(other)} of them"
        for place, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{where}[{place}]")
    elif isinstance(one, rq.Key):
        yield from differences(one.fold_in("same").words(2), other.fold_in("same").words(2), where)
    elif (names := _stored(one)) and not isinstance(one, types.FunctionType | type):
        for name in names:
            pair = getattr(one, name, None), getattr(other, name, None)
            yield from differences(*pair, f"{where}.{name}")
    elif (
        isinstance(one, str | bytes | int | float | frozenset | set) and one != other and one == one
    ):
        yield f"{where}: {one!r} and {other!r}"


def _stored(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [each.name for each in dataclasses.fields(value)]
    own = type(value).__module__.startswith("randquant")
    return list(getattr(value, "__dict__", ())) if own else []


def foreign(value: Any, where: str = "it") -> Iterator[str]:
    """Where a value of ours has a number that is not Python's."""
    if isinstance(value, np.generic) and where != "it":
        yield f"{where} is {value!r}"
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from foreign(each, f"{where}[{place}]")
    elif not isinstance(value, types.FunctionType | type):
        for name in _stored(value):
            yield from foreign(getattr(value, name, None), f"{where}.{name}")


LONE_BIT = rq.stochastic_rounding(clip=0.05, levels=2, margin=0.5)
SUMMED = rq.VectorMechanism(LONE_BIT, 1.0, "aggregate", 40)
OFFER = Offer(SUMMED, 650)
PEOPLE = [{"age": 20.0 + k % 60, "sex": "fm"[k % 2], "sick": k % 3 == 0} for k in range(400)]
QUERIES = {"age": rq.Mean(0, 100), "sex": rq.Counts(["f", "m"])}
KEY = rq.Key.from_seed(1)
IDENTITY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def _phones() -> dict[str, Any]:
    x = torch.randn(6, 8, 4, generator=torch.Generator().manual_seed(0))
    return {f"phone {k}": (part, (part[:, 0] > 0).long()) for k, part in enumerate(x)}


def _trained(**given: Any) -> Any:
    """What a run of a few rounds has learnt, and what it says."""
    torch.manual_seed(0)
    local = rq.Local(learning_rate=given.pop("local_rate"), epochs=given.pop("epochs"))
    server = rq.Server("SGD", learning_rate=given.pop("server_rate"))
    one_bit = rq.VectorMechanism(LONE_BIT, 1.0, "aggregate", 5)  # calibrating takes long
    run = rq.train(
        torch.nn.Linear(4, 2), _phones(), mechanism=one_bit, local=local, server=server, **given
    )
    weights = [each.detach() for each in run.model.parameters()]
    return weights, run.guarantee, run.upload_bytes


def _asked(**given: Any) -> Any:
    return list(rq.statistics(PEOPLE, queries=QUERIES, **given).items())


def _surveyed(clients: Any, records: Any) -> Any:
    terms = rq.survey(QUERIES, 1.0, 1e-6, "local", 2, 2)
    mechanism = rq.SurveyMechanism(terms)
    updates = [mechanism.update(PEOPLE[k], KEY.fold_in(k)) for k in range(2)]
    payloads = [mechanism.encode(each, KEY.fold_in("noise", k)) for k, each in enumerate(updates)]
    return list(mechanism.table(mechanism.mean(payloads), clients, records).items())


def _counted(delta: Any, max_epsilon: Any, count: Any, other: Any, limit: Any) -> Any:
    account = RunAccountant(delta, max_epsilon=max_epsilon)
    event = RoundEvent(OFFER, frozenset({1, 2}))
    account.compose(event, count)
    spent = account.get_privacy_spent(), account.get_privacy_spent(other)
    found = account.get_epsilon(other), account.get_delta(limit), account.assumes()
    return spent, found, account.would_exceed(event, limit, count), account.state_dict()


def _planned(**given: Any) -> Any:
    strategy = QuantizedStrategy.for_target(
        FedAvg(fraction_evaluate=0.0), model=50, privacy=rq.Privacy(bits=1), **given
    )
    run = strategy.run
    return run.mechanism, run.accountant, strategy.rounds, strategy.needed, run.patience


def _job(**given: Any) -> Any:
    job = QuantizeController(VECTOR.record(), folder="run", **given)
    run = job._new_run(lambda level, line: None)
    return job.rounds, job.min_clients, run.patience, run.accountant


def _helped(tmp: Any = None, **given: Any) -> Any:
    key = HelperKey.from_record(HELPER_KEY)
    return HelperTerms(bytes(16), key, offer=bytes(32), **given)


def _helper_record() -> dict[str, Any]:
    import tempfile

    return Helper(tempfile.mkdtemp(), IDENTITY).key.to_record()


HELPER_KEY = _helper_record()


def _more() -> Iterator[Call]:
    def call(name, function, /, **values):
        return Call(name, function, values)

    yield call("Interval", rq.Interval, lower=1.0, upper=2.0)
    yield call("Guarantee", rq.Guarantee, epsilon=1.0, delta=0.1, neighboring="replace_one",
               trust="local", order=2.0, releases=100)  # fmt: skip
    yield call("VectorRelease of examples", rq.VectorRelease, channel=CHANNEL, clip_norm=0.3,
               dimension=100, rounds=100, trust="aggregate", cohort=100, examples=100,
               whole_norm=1.0)  # fmt: skip
    yield call("NoiseRelease", NoiseRelease, noise=Skellam(50.0), cohort=100,
               squared_distance=100, dimension=100, rounds=2)  # fmt: skip
    yield call("LaplaceRelease", LaplaceRelease, scale=40.0, l1_distance=100, drawn=0.125,
               cohort=100, dimension=100, rounds=2)  # fmt: skip
    yield call("HiddenCohorts", HiddenCohorts, draw="fixed", population=100, cohort=10, rounds=100)
    yield call("DiscreteLaplace", DiscreteLaplace, scale=40.0, clients=100)
    yield call("DiscreteGaussian", DiscreteGaussian, variance=300.0)
    yield call("Skellam", Skellam, variance=300.0)
    yield call("Binomial", Binomial, trials=100)
    yield call(
        "amplified",
        lambda rate, order: amplified(
            rq.GaussianRelease(1.0, 5, 1).renyi, rate, order, "replace_one"
        ),
        rate=0.1,
        order=3.0,
    )
    yield call("gaussian_multiplier", gaussian_multiplier, epsilon=0.7, delta=1e-5, rounds=100)
    yield call("renyi", privacy.renyi, p=np.array([50, 50]), q=np.array([25, 75]), total=100,
               order=2.5)  # fmt: skip
    for digits in (privacy.round_up, privacy.round_down):
        yield call(digits.__name__, digits, value=0.3, digits=3)
    yield call("VectorMechanism of a subset", rq.VectorMechanism, channel=LONE_BIT, clip_norm=0.3,
               trust="aggregate", cohort=100, rotation_seed=100, coordinates=100,
               subset_seed=100)  # fmt: skip
    yield call("AdditiveMechanism of a subset", AdditiveMechanism, kind="skellam", clip_norm=0.3,
               noise_multiplier=1.4, cohort=100, bits=16, deviations=6.0, rotation_seed=100,
               coordinates=100, subset_seed=100)  # fmt: skip
    yield call("AdditiveMechanism.release", lambda **given: AdditiveMechanism(**given).release(
        100, 1), kind="skellam", clip_norm=0.3, noise_multiplier=1.4, cohort=100)  # fmt: skip
    yield call("Number", rq.Number, name="loss", low=0.1, high=3.3, share=0.3)
    yield call("AuxiliaryNumbers", AuxiliaryNumbers, clip_norm=0.3, numbers=(rq.Number("loss"),))
    yield call("Rotation", Rotation, dimension=100, seed=100)
    yield call("Subset", Subset, size=64, count=50, seed=100)
    yield call("Projection", Projection, dimension=100, clip_norm=0.3, rotation_seed=100,
               coordinates=50, subset_seed=100)  # fmt: skip
    yield call("CoordinateError.deviation", CoordinateError(0.3, omitted=0.5).deviation,
               cohort=100, mean_norm=0.3)  # fmt: skip
    yield call("UpdateSetting", UpdateSetting, dimension=100, cohort=100, bits=8,
               trust="aggregate", clip_norm=0.3, coordinates=50)  # fmt: skip
    yield call("CoordinateTarget", CoordinateTarget, clip=0.3, levels=4, epsilon=0.7,
               objective="mse")  # fmt: skip
    yield call("tune_update", planning.tune_update, name="skellam",
               setting=UpdateSetting(100, 100, 16, "aggregate", 1.0), epsilon=0.7, delta=1e-5,
               rounds=100, deviation=0.3)  # fmt: skip
    yield call("tradeoffs", tradeoffs, clip=0.3, bits=[1], mechanisms=["stochastic-rounding"])
    yield call("plan of all", rq.plan, dimension=100, population=120, cohort=100, rounds=100,
               epsilon=0.7, delta=1e-5, mechanisms=["gaussian"], mean_norm=0.3)  # fmt: skip
    yield from _of_statistics(call)
    yield from _of_training(call)
    yield from _of_engines(call)


def _of_statistics(call: Callable[..., Call]) -> Iterator[Call]:
    yield call("Mean", rq.Mean, low=0.1, high=100.0)
    yield call("Counts", rq.Counts, bins=[0.1, 30.0, 100.0])
    yield call("Quantiles", rq.Quantiles, low=0.1, high=100.0, steps=100, at=[0.3, 0.7])
    yield call("KaplanMeier", rq.KaplanMeier, time="age", event="sick", until=33.3, bins=100)
    yield call("LogRank", rq.LogRank, time="age", event="sick", by="sex", groups=("f", "m"),
               until=33.3, bins=100)  # fmt: skip
    yield call("Covariance", rq.Covariance, columns={"age": (0.1, 100.0)})
    yield call("LinearRegression", rq.LinearRegression, target={"age": (0.1, 100.0)},
               features={"time": (0.1, 33.3)})  # fmt: skip
    yield call("survey", rq.survey, queries=QUERIES, epsilon=0.7, delta=1e-5, trust="aggregate",
               clients=100, records=100, weights={"age": 1.3}, unit="example",
               most=100)  # fmt: skip
    yield call("Survey", rq.Survey, queries={"age": rq.Mean(0, 100)}, amplitudes={"age": 100},
               law=Skellam(300.0), cohort=100, trust="aggregate", delta=1e-5, unit="example",
               most=100, bits=20)  # fmt: skip
    yield call("SurveyMechanism.table", _surveyed, clients=2, records=2)
    yield call("statistics", _asked, epsilon=0.7, delta=1e-5, seed=100, weights={"age": 1.3})


def _of_training(call: Callable[..., Call]) -> Iterator[Call]:
    yield call("train", _trained, epsilon=77.0, delta=1e-4, rounds=3, cohort=5, seed=100,
               local_rate=0.1, epochs=2, server_rate=0.3)  # fmt: skip
    yield call("Local", rq.Local, epochs=100, batch=100, learning_rate=0.1, threads=2)
    yield call("Privacy of many", rq.Privacy, bits=3, clip_norm=0.3, max_participations=100,
               coordinates=100)  # fmt: skip
    yield call("Server", rq.Server, optimizer="SGD", options={"momentum": 0.9}, learning_rate=0.1,
               evaluate_every=100, checkpoint_every=100)  # fmt: skip
    yield call("Standardize", rq.Standardize, lower=0.1, upper=[1.1, 100.0], target=(0.1, 1.1),
               share=0.3)  # fmt: skip
    yield call("Task", Task, population=100)
    yield call("TrainConfig", training.TrainConfig, task=Task(200),
               mechanism="rqm", parameters={"clip": 1.0, "margin": 1.0, "levels": 4, "keep": 0.4},
               cohort=100, rounds=100, delta=1e-5, stop_at_epsilon=0.7, seed=100)  # fmt: skip
    drawn = {"population": 100, "cohort": 10, "round": 100, "key": KEY}
    yield call("sample_cohort", schedule.sample_cohort, **drawn)
    yield call("sample_hidden", schedule.sample_hidden, **drawn)
    yield call("sample_poisson", schedule.sample_poisson, population=100, rate=0.1, round=100,
               key=KEY)  # fmt: skip
    yield call("capped_cohorts", lambda **given: list(schedule.capped_cohorts(**given)),
               population=100, cohort=50, rounds=3, max_participations=2, key=KEY)  # fmt: skip


def _of_engines(call: Callable[..., Call]) -> Iterator[Call]:
    yield call("Offer", Offer, mechanism=VECTOR, dimension=100, examples=100)
    yield call("Offer.release", OFFER.release, rounds=100, neighboring="replace_one",
               trust="aggregate")  # fmt: skip
    for kind in (ClientLimits, QuantizeMod):
        yield call(kind.__name__, kind, epsilon=7.7, delta=1e-5, colluders=100, threshold=0.7,
                   epsilon_alone=100.0)  # fmt: skip
    yield call("RunAccountant", _counted, delta=1e-5, max_epsilon=7.7, count=100, other=1e-3,
               limit=3.3)  # fmt: skip
    yield call("AmongClients", AmongClients, least=100, neighbours=6, step_timeout=100.0)
    yield call("WithHelper", lambda least: WithHelper(_Answers(), least=least), least=100)
    yield call("within", lambda **given: within(**given).__closure__ and [
        cell.cell_contents for cell in within(**given).__closure__], epsilon=0.7, delta=1e-5,
        examples=100)  # fmt: skip
    yield call("for_target", _planned, epsilon=7.7, rounds=20, cohort=50, clients=120, delta=1e-5,
               dropouts=5)  # fmt: skip
    yield call("Losses.graph", lambda clients, **given: Losses(**given).graph(clients),
               clients=100, step=0.01, colluders=5, failure=1e-5, exposure=1e-5)  # fmt: skip
    yield call("Terms", Terms, session=bytes(16), clients=(1, 2, 100), dimension=100, bits=16,
               least=3, neighbours=2, threshold=2)  # fmt: skip
    yield call("JobOptions", JobOptions, learning_rate=0.1, patience=100, timeout=100)
    yield call("QuantizeController", _job, rounds=100, stop_at_epsilon=7.7, delta=1e-5,
               examples=100, min_clients=100)  # fmt: skip
    yield call("HelperTerms", _helped, cohort=100, least=50, dimension=100, bits=16)
    yield call("HelperLimits", HelperLimits, least=100, most_sums=100, clients=120,
               coordinates=100)  # fmt: skip


class _Answers:
    def answer(self, request: bytes) -> bytes:
        return request


RECORDED = {"from_record"}
"""Calls of a record in JSON, whose numbers are Python's."""

ALL_CALLS = {
    name: call
    for name, call in {**CALLS, **{each.name: each for each in _more()}}.items()
    if name not in RECORDED
}

"""Calls of what users call, and wrong values for each of their arguments."""

from __future__ import annotations

import contextlib
import gc
import math
import re
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import randquant as rq
from randquant import mechanisms
from randquant.aggregation import (
    AdditiveMechanism,
    CentralGaussian,
    ChannelMechanism,
    ClippedSGD,
    LocalGaussian,
    SignSGD,
    VectorMechanism,
    registry,
)
from randquant.channels import encoding, wire
from randquant.mechanisms import design
from randquant.planning import compare, planner
from randquant.privacy import compose, dominating_pair, run_release

SENTENCE = re.compile(r"^(Client \S+: |[\w .'=-]+: )?Expected .*[.?]$", re.DOTALL)
OURS = (ValueError, TypeError, OSError)

CHANNEL = rq.stochastic_rounding(clip=0.5, levels=4, margin=0.5)
UPDATE = np.linspace(-0.4, 0.4, 10, dtype=np.float32)
COORDINATES, VECTOR = ChannelMechanism(CHANNEL), VectorMechanism(CHANNEL, 1.0)
CODES = encoding.encode(CHANNEL, UPDATE, rq.Key.from_seed(1))
RELEASE = rq.ChannelRelease(CHANNEL, 10, 3)
GAUSSIAN = rq.GaussianRelease(1.0, 10, 3)
FOLDER = Path(tempfile.mkdtemp())
rq.save_channel(FOLDER / "channel.json", CHANNEL)
registry.save(VECTOR, FOLDER / "mechanism.json")


@dataclass(frozen=True)
class Call:
    """A function with values for all its arguments, with which it succeeds."""

    name: str
    function: Callable[..., Any]
    values: Mapping[str, Any]

    def with_values(self, **others: Any) -> dict[str, Any]:
        """All its arguments, some of them with other values."""
        fresh = {n: v() if isinstance(v, Fresh) else v for n, v in self.values.items()}
        return {**fresh, **others}


class Fresh:
    """A value that is made for each call, because it may be used once."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __call__(self) -> Any:
        return self.make()


KEY = Fresh(lambda: rq.Key.from_seed(1))


def _calls() -> Iterator[Call]:
    def call(name, function, /, **values):
        return Call(name, function, values)

    yield call("rqm", rq.rqm, clip=1.5, margin=1.5, levels=4, keep=0.4)
    yield call("stochastic_rounding", rq.stochastic_rounding, clip=1.0, levels=4, margin=0.5)
    yield call("sparse_ternary", mechanisms.sparse_ternary, clip=1.0, margin=9.0, rate=0.25)
    yield call("pbm", rq.pbm, clip=1.0, theta=0.2, trials=3, inputs=5)
    yield call("qmgeo", rq.qmgeo, clip=1.0, levels=4, p=0.3, mixing=0.1)
    yield call("erm", rq.erm, clip=1.0, bins=[-2.0, 0.0, 2.0], gamma=0.2)
    yield call("two_bins", rq.two_bins, clip=1.0, bins=[-2.0, 0.0, 2.0],
               left=[[1.0], [0.5, 0.5]], right=[[0.5, 0.5], [1.0]])  # fmt: skip
    yield call("optm", rq.optm, clip=1.0, bins=[-3.0, 3.0], epsilon=1.0,
               density=None, reach=None)  # fmt: skip
    yield call("mvu", rq.mvu, clip=1.0, levels=2, epsilon=1.0, inputs=3, geometry="pure")
    yield call("imvu", rq.imvu, clip_norm=1.0, levels=2, epsilon=1.0, beta=1.0)
    yield call("build", mechanisms.build, name="rqm",
               parameters={"clip": 1.0, "margin": 1.0, "levels": 4, "keep": 0.4})  # fmt: skip
    yield call("Channel", rq.Channel, inputs=np.array([-1.0, 1.0]), values=np.array([-1.0, 1.0]),
               weights=np.array([[3, 1], [1, 3]]), denominator=4)  # fmt: skip
    yield call("Channel.mix", CHANNEL.mix, x=0.2)
    yield call("Channel.locate", CHANNEL.locate, x=np.array([0.1]))
    yield call("Channel.vertex_input", CHANNEL.vertex_input, vertex=1)
    yield call("Key", rq.Key, secret=bytes(32))
    yield call("Key.from_seed", rq.Key.from_seed, seed=1)
    yield call("Key.words", lambda count, start: rq.Key.from_seed(1).words(count, start), count=2,
               start=0)  # fmt: skip
    yield call("Key.fold_in", lambda label: rq.Key.from_seed(1).fold_in(label), label="a")
    yield call("moments", rq.moments, channel=CHANNEL)
    for name in ("bias_at", "variance_at", "mae_at", "mse_at"):
        yield call(f"Moments.{name}", getattr(rq.moments(CHANNEL), name), x=0.1)
    yield call("encode", rq.encode, channel=CHANNEL, x=UPDATE, key=KEY, threads=1)
    yield call("decode", rq.decode, channel=CHANNEL, codes=CODES)
    yield call("encode_payload", encoding.encode_payload, channel=CHANNEL, x=UPDATE, key=KEY,
               threads=1)  # fmt: skip
    yield call("encode_payloads", encoding.encode_payloads, channel=CHANNEL, x=UPDATE[None],
               keys=Fresh(lambda: [rq.Key.from_seed(1)]))  # fmt: skip
    payload = wire.pack(CHANNEL, CODES)
    yield call("wire.pack", wire.pack, channel=CHANNEL, codes=CODES)
    yield call("wire.unpack", wire.unpack, channel=CHANNEL, payload=payload, dimension=10)
    yield call("wire.add", wire.add, channel=CHANNEL, payload=payload,
               totals=Fresh(lambda: np.zeros(10, np.int64)))  # fmt: skip
    yield call(
        "wire.Format.from_facts", lambda levels: wire.Format.from_facts(levels, "x"), levels=4
    )
    yield call("certify", rq.certify, channel=CHANNEL, order=2.0, neighboring="replace_one")
    yield call("certify_pair", rq.certify_pair, channel=CHANNEL, x=0.1, other=0.2, order=2.0)
    yield call("certify_metric", rq.certify_metric, channel=CHANNEL, geometry="l1")
    yield call("certify_sum", rq.certify_sum, channel=CHANNEL, clients=3, order=2.0,
               neighboring="replace_one")  # fmt: skip
    yield call("fisher_information", rq.fisher_information, channel=CHANNEL)
    yield call("kappa", rq.kappa, channel=CHANNEL, order=2.0)
    yield call("kappa_sum", rq.kappa_sum, channel=CHANNEL, clients=3, order=2.0,
               neighboring="replace_one", farthest=None)  # fmt: skip
    yield call("squared_distance", rq.squared_distance, channel=CHANNEL, distance=1.0, dimension=9)
    yield call("load_channel", rq.load_channel, path=FOLDER / "channel.json")
    yield call("save_channel", rq.save_channel, path=FOLDER / "again.json", channel=CHANNEL,
               certificate=None)  # fmt: skip
    yield call("ChannelRelease", rq.ChannelRelease, channel=CHANNEL, dimension=10, rounds=3,
               trust="local", neighboring="replace_one", cohort=1)  # fmt: skip
    yield call("VectorRelease", rq.VectorRelease, channel=CHANNEL, clip_norm=1.0, dimension=10,
               rounds=3, trust="local", neighboring="replace_one", cohort=1,
               examples=None)  # fmt: skip
    yield call("GaussianRelease", rq.GaussianRelease, relative_deviation=1.0, dimension=10,
               rounds=3, trust="central", neighboring="replace_one")  # fmt: skip
    for name, release in (("ChannelRelease", RELEASE), ("GaussianRelease", GAUSSIAN),
                          ("VectorRelease", VECTOR.release(10, 3))):  # fmt: skip
        yield call(f"{name}.renyi", release.renyi, order=2.0)
    yield call("VectorRelease.under", VECTOR.release(10, 3).under, trust="aggregate")
    yield call("run_release", run_release, mechanism=VECTOR, dimension=10, rounds=3, examples=5)
    yield call("Sampled", rq.Sampled, release=rq.GaussianRelease(1.0, 10, 1), rate=0.1, rounds=3,
               scheme="poisson", hidden=True, absent=None)  # fmt: skip
    yield call("Sampled.from_cohort", rq.Sampled.from_cohort,
               release=rq.GaussianRelease(1.0, 10, 1),
               population=100, cohort=10, rounds=3, absent=None, models=False)  # fmt: skip
    yield call("GaussianSteps", rq.GaussianSteps, neighboring="zero_out", unit="example")
    yield call("GaussianSteps.step", rq.GaussianSteps().step, noise_multiplier=1.0,
               drawn="poisson", rate=0.1, count_noise=None, times=1)  # fmt: skip
    yield call("GaussianSteps.epsilon", rq.GaussianSteps().epsilon, delta=1e-5)
    yield call("account", rq.account, releases=[RELEASE], delta=1e-5, quick=True)
    yield call("account of one", lambda release: rq.account([release], 1e-5), release=RELEASE)
    yield call("calibrate", rq.calibrate, build=lambda noise: CentralGaussian(None, 2 * noise, 1.0),
               epsilon=1.0, delta=1e-5, dimension=10, rounds=3, neighboring="replace_one",
               examples=None, start=1.0, reach=(1e-3, 1e3))  # fmt: skip
    yield call("compose", compose, channel=CHANNEL, releases=3, delta=1e-5, quick=True)
    yield call("dominating_pair", dominating_pair, channel=CHANNEL)
    yield call("audit", rq.audit, mechanism=COORDINATES, update=UPDATE, other=-UPDATE, key=KEY,
               delta=0.0, confidence=0.99, trials=200, others=None,
               neighboring="replace_one")  # fmt: skip
    yield call("named_constraint", design.named_constraint, name="pure", epsilon=1.0, order=None)
    for name in ("Pure", "Fisher"):
        yield call(name, getattr(design, name), epsilon=1.0)
    yield call("Renyi", design.Renyi, epsilon=1.0, order=2.0)
    yield call("Metric", design.Metric, epsilon=1.0, geometry="l1")
    yield call("least_epsilon", design.least_epsilon, clip=1.0, values=[-2.0, 2.0],
               constraint=design.Pure(1.0), inputs=3)  # fmt: skip
    yield call("optimal", design.optimal, clip=1.0, values=[-3.0, 3.0],
               constraint=design.Pure(1.0), objective="mae", inputs=3, density=None)  # fmt: skip
    yield from _mechanisms(call)
    yield call("Privacy", rq.Privacy, unit="client", neighboring="replace_one", bits=1,
               clip_norm=1.0, sampling="fixed", max_participations=3, coordinates=4)  # fmt: skip
    yield call("plan", planner.plan, dimension=10, population=20, cohort=10, rounds=2, epsilon=8.0,
               delta=1e-3, mechanisms=["stochastic-rounding"],
               privacy=rq.Privacy(bits=1))  # fmt: skip
    yield call("at_equal_epsilon", compare.at_equal_epsilon, clip=1.0, bits=[1], epsilon=1.0,
               objective="mae", order=2.0, mechanisms=["rqm"])  # fmt: skip
    yield call("make_entry", compare.make_entry, name="mine", channel=CHANNEL, parameters=None,
               order=2.0)  # fmt: skip
    yield call("compare_channels", compare.compare_channels,
               channels=[("rqm", {"clip": 1.0, "margin": 1.0, "levels": 4, "keep": 0.4})],
               order=2.0)  # fmt: skip


def _mechanisms(call) -> Iterator[Call]:
    yield call("ChannelMechanism", ChannelMechanism, channel=CHANNEL, trust="local", cohort=1)
    yield call("VectorMechanism", VectorMechanism, channel=CHANNEL, clip_norm=1.0, trust="local",
               cohort=1, rotation_seed=0)  # fmt: skip
    yield call("AdditiveMechanism", AdditiveMechanism, kind="skellam", clip_norm=1.0,
               noise_multiplier=2.0, cohort=3, bits=16, deviations=6.0,
               rotation_seed=0)  # fmt: skip
    yield call("CentralGaussian", CentralGaussian, clip=None, noise_multiplier=2.0, clip_norm=1.0)
    yield call("LocalGaussian", LocalGaussian, clip_norm=1.0, noise_multiplier=2.0)
    yield call("ClippedSGD", ClippedSGD, clip=None, clip_norm=1.0)
    yield call("SignSGD", SignSGD, clip_norm=1.0, noise_multiplier=2.0)
    made = {
        "ChannelMechanism": COORDINATES, "VectorMechanism": VECTOR,
        "AdditiveMechanism": AdditiveMechanism("skellam", 1.0, 2.0, 2),
        "CentralGaussian": CentralGaussian(None, 2.0, 1.0), "SignSGD": SignSGD(1.0, 2.0),
        "LocalGaussian": LocalGaussian(1.0, 2.0), "ClippedSGD": ClippedSGD(None, 1.0),
    }  # fmt: skip
    for name, mechanism in made.items():
        payloads = [mechanism.encode(UPDATE, rq.Key.from_seed(n)) for n in (1, 2)]
        yield call(f"{name}.encode", mechanism.encode, update=UPDATE, key=KEY)
        yield call(f"{name}.encode_many", mechanism.encode_many, updates=np.stack([UPDATE] * 2),
                   keys=Fresh(lambda: [rq.Key.from_seed(1), rq.Key.from_seed(2)]))  # fmt: skip
        yield call(f"{name}.mean", mechanism.mean, payloads=payloads, dimension=10, key=KEY)
        yield call(f"{name}.release", mechanism.release, dimension=10, rounds=3,
                   neighboring="replace_one")  # fmt: skip
        yield call(f"{name}.upload_bytes", mechanism.upload_bytes, dimension=10, clients=2)
        yield call(f"{name}.size", mechanism.size, dimension=10)
    yield call("update_mechanism", registry.update_mechanism, name="stochastic-rounding",
               parameters={"clip": 1.0, "levels": 2, "margin": 0.5}, trust="local", cohort=None,
               clip_norm=None)  # fmt: skip
    yield call("from_record", registry.from_record, record=VECTOR.record(), where="in a record")
    yield call("load", registry.load, path=FOLDER / "mechanism.json")
    yield call("save", registry.save, mechanism=VECTOR, path=FOLDER / "again2.json")


def wrong_values() -> dict[str, Any]:
    """Values of every kind, by what they are; most are wrong for most arguments."""
    return {
        "None": None, "a text": "text", "an empty text": "", "NaN": math.nan, "infinity": math.inf,
        "minus infinity": -math.inf, "minus one": -1, "zero": 0, "a fraction": 2.5, "True": True,
        "a huge integer": 10**30, "a huge float": 1e308, "a tiny float": 5e-324, "bytes": b"abc",
        "an empty list": [], "a ragged list": [[1.0, 2.0], [3.0]], "a list of texts": ["a", "b"],
        "a list of NaN": [math.nan, 1.0], "a list of None": [None],
        "a matrix": np.zeros((2, 3), np.float32), "a cube": np.zeros((1, 2, 3)),
        "an empty array": np.zeros(0, np.float32), "an array of texts": np.array(["a", "b"]),
        "an array of objects": np.array([None, {}], dtype=object), "an array of NaN":
        np.full(10, np.nan, np.float32), "an array without sides": np.array(1.0),
        "an array of 1024": np.zeros(1024, np.float32), "an array of complex": np.full(10, 1j),
        "an array of integers": np.arange(10), "an array of huge": np.full(10, 1e38, np.float32),
        "a dict": {}, "a dict of texts": {"a": "b"}, "a set": {1}, "a complex": 1j,
        "an object": object(), "a function": math.sqrt, "a class": int, "a channel": CHANNEL,
        "a certificate": rq.certify(CHANNEL), "a release": RELEASE, "a mechanism": VECTOR,
        "a key": rq.Key.from_seed(3), "a guarantee": rq.account([RELEASE], 1e-5),
        "a list of channels": [CHANNEL], "a folder": FOLDER, "no file": FOLDER / "none" / "no.json",
        "a generator": (n for n in ()), "an exception": ValueError("no"),
        "a date": np.datetime64(0, "s"),
        "a bool of NumPy": np.bool_(True), "a list of bytes": [b"abc", b""], "a date text": "nan",
    }  # fmt: skip


CALLS = {call.name: call for call in _calls()}


class TooLong(BaseException):
    """A call took longer than it may."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    gc.disable()  # what is raised in one of its callbacks is lost
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, before)


def answer(call: Call, argument: str, value: Any, seconds: float = 5.0) -> str:
    """What is wrong with the answer to a value; empty if it succeeds, or a sentence refuses it."""
    try:
        with warnings.catch_warnings(), at_most(seconds):
            warnings.simplefilter("error")
            call.function(**call.with_values(**{argument: value}))
    except TooLong:
        return ""  # it is not refused, and the test has no time to see how it ends
    except OURS as error:
        if SENTENCE.match(" ".join(str(error).split())) or isinstance(error, rq.OutOfReach):
            return ""
        return f"{type(error).__name__}: {str(error)[:150]}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return ""

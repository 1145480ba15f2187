import json
from fractions import Fraction

import pytest
from hypothesis import given
from strategies import channels

import randquant as rq
from randquant.mechanisms import build, design

RQM = {"clip": 1.5, "margin": 1.5, "levels": 16, "keep": 0.42}


@given(channels())
def test_what_is_saved_is_loaded(tmp_path_factory, channel):
    path = tmp_path_factory.mktemp("channel") / "channel.json"
    for certificate in (None, rq.certify(channel, 2.0), rq.certify_metric(channel, "fisher")):
        rq.save_channel(path, channel, certificate)
        loaded, found = rq.load_channel(path)
        assert loaded == channel
        assert found == (rq.certify(channel) if certificate is None else certificate)


def test_a_design_is_a_mechanism(tmp_path):
    path = tmp_path / "design.json"
    found = design.optimal(
        2.0, [-6, -1, 1, 6], constraint=design.Renyi(0.9, order=4.0), objective="mse", inputs=5
    )
    rq.save_channel(path, found.channel, found.certificate)
    assert rq.load_channel(path) == (found.channel, found.certificate)
    assert build("channel-file", {"path": str(path)}) == found.channel


def changed(record, change):
    name, value = change
    if name == "moved":
        record["weights"][0][0] += value
        record["weights"][0][1] -= value
    elif name == "fresh fingerprint":
        row = record["weights"][0]
        least, most = row.index(min(row)), row.index(max(row))
        moved = row[least] // value
        row[least], row[most] = row[least] - moved, row[most] + moved
        channel = rq.Channel(
            record["inputs"], record["values"], record["weights"], record["denominator"]
        )
        record["fingerprint"] = channel.fingerprint.hex()
    elif name == "claim":
        record["certificate"]["epsilon"] = {"lower": value, "upper": value}
    elif name in record:
        record[name] = value
    else:
        del record[name.removeprefix("no ")]
    return record


def written(folder, channel, change):
    """A channel's file, in which something is changed."""
    path = folder / "channel.json"
    rq.save_channel(path, channel)
    path.write_text(json.dumps(changed(json.loads(path.read_text()), change)))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("moved", 1), "to have the fingerprint"),
        (("fresh fingerprint", 2), "certified at epsilon 5.46.* as it says, got 5.74"),
        (("claim", 5.0), "certified at epsilon 5 as"),
        (("claim", 6.0), "certified at epsilon 6"),
        (("denominator", 2**61), "sum"),
        (("values", [0.0]), "values|weights"),
        (("format", "something else"), "something else"),
        (("no weights", None), "weights"),
        (("no certificate", None), "certificate"),
        (("certificate", {"order": 0.5, "epsilon": {"lower": 0, "upper": 1}}), "order"),
        (("certificate", {"geometry": "l3", "epsilon": {"lower": 0, "upper": 1}}), "geometry"),
        (("certificate", []), "Expected a channel file"),
        (("moved", 0.5), "integer weights"),
    ],
)
def test_a_changed_file_is_refused(tmp_path, change, message):
    path = written(tmp_path, rq.rqm(**RQM), change)
    with pytest.raises(ValueError, match=message):
        rq.load_channel(path)


@pytest.mark.parametrize("keep", [0.1, 0.2, 0.3, 0.42, 0.5, 0.7])
def test_the_bound_that_is_named_is_one(tmp_path, keep):
    """A bound of epsilon is never printed below its value, in an error neither."""
    channel = rq.rqm(1.5, 1.5, 16, keep)
    path = written(tmp_path, channel, ("claim", 0.5))
    with pytest.raises(ValueError, match=r"epsilon 0\.5 as it says, got ") as caught:
        rq.load_channel(path)
    named = str(caught.value).split(", got ")[1].split(":")[0]
    upper = Fraction(rq.certify(channel).epsilon.upper)
    assert upper <= Fraction(named) <= upper + Fraction(1, 10**7)


def test_a_channel_that_has_no_bound_says_so(tmp_path):
    path = written(tmp_path, rq.stochastic_rounding(1.0, 2), ("claim", 3.0))
    with pytest.raises(ValueError, match=r"epsilon 3 as it says, got no finite one"):
        rq.load_channel(path)


@pytest.mark.parametrize("name", ["inputs", "values", "weights"])
def test_numbers_must_be_numbers(tmp_path, name):
    """Text and truth values would be taken for numbers."""
    channel = rq.rqm(**RQM)
    rows = getattr(channel, name).tolist()
    for kind in (str, bool, lambda number: [number]):
        wrong = [list(map(kind, row)) if name == "weights" else kind(row) for row in rows]
        path = written(tmp_path, channel, (name, wrong))
        with pytest.raises(ValueError, match="not lists of numbers"):
            rq.load_channel(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 1}'])
def test_what_is_no_channel_file_is_refused(tmp_path, content):
    path = tmp_path / "channel.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="Expected a channel file at"):
        rq.load_channel(path)


def test_a_certificate_of_one_pair_is_not_saved(tmp_path):
    channel = rq.rqm(**RQM)
    with pytest.raises(ValueError, match="all pairs"):
        rq.save_channel(tmp_path / "c.json", channel, rq.certify_pair(channel, 1.5, -1.5))
    assert not list(tmp_path.iterdir())


def test_a_lost_file_is_named(tmp_path):
    with pytest.raises(OSError, match="missing"):
        rq.load_channel(tmp_path / "missing.json")

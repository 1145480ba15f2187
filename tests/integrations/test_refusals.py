"""What a job and a message on an engine must not be: each rule with a call against it."""

import numpy as np
import pytest
from flower_rounds import all_refuse, exact, grid_of
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from nvflare.apis.dxo import DXO, DataKind

import randquant as rq
from randquant.integrations import INBOX, JobOptions, QuantizeController, nvflare
from randquant.integrations.flower import messages
from randquant.secure_sums import ProtocolError

TARGET = {"model": 16, "epsilon": 2.0, "rounds": 5, "sites": 4, "folder": "run"}
BITS = {"of numbers": {"a": np.zeros(3)}, "of nothing": {}, "of a text": {nvflare.PAYLOAD: "codes"}}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"privacy": rq.Privacy(numbers=["loss"])}, "updates alone on NVFlare"),
        (
            {"privacy": rq.Privacy(numbers=["n:0:9"], weighted_by="n")},
            "updates alone on NVFlare",
        ),
        ({"privacy": rq.Privacy(neighboring="zero_out")}, "one neighbouring relation"),
        ({"options": JobOptions(neighboring="zero_out")}, "one neighbouring relation"),
        ({"model": "a model"}, "torch module, a state dict, arrays by name or a number"),
    ],
)
def test_what_a_job_on_nvflare_does_not_have_is_refused_and_not_dropped(settings, said):
    with pytest.raises((TypeError, ValueError), match=said):
        QuantizeController.for_target(**{**TARGET, **settings})


@pytest.mark.parametrize("data", BITS.values(), ids=BITS)
@pytest.mark.parametrize("kind", [DataKind.APP_DEFINED, DataKind.WEIGHT_DIFF])
def test_an_answer_of_a_site_without_a_filter_is_not_read_as_codes(data, kind):
    read = nvflare.read_answer(DXO(kind, data).to_shareable(), bytes(16), 100)
    assert isinstance(read, ProtocolError)
    assert "a site needs QuantizeFilter" in str(read)


def test_an_answer_on_nvflare_that_is_longer_than_any_of_its_round_is_not_kept():
    for size, kept in ((100, True), (101, False)):
        result = DXO(DataKind.APP_DEFINED, {nvflare.PAYLOAD: bytes(size)}).to_shareable()
        read = nvflare.read_answer(result, bytes(16), 100)
        assert (str(read) == "Expected an answer of at most 100 bytes, got 101.") is not kept


def test_arrays_on_nvflare_have_names():
    for data in ([np.zeros(3)], {0: np.zeros(3)}):
        with pytest.raises(ValueError, match="Expected arrays by name"):
            nvflare.read_arrays(DXO(DataKind.APP_DEFINED, data))


def test_a_number_that_is_in_two_records_is_neither():
    """Which one is sent with the update would depend on their order."""
    content = RecordDict({"a": MetricRecord({"loss": 1.0}), "b": MetricRecord({"loss": 2.0})})
    with pytest.raises(ValueError, match="each metric in one record, got 'loss' in two"):
        messages.numbers_in(content)
    content["b"] = MetricRecord({"accuracy": 2.0, "by class": [1.0, 2.0]})
    assert messages.numbers_in(content) == {"loss": 1.0, "accuracy": 2.0}


def test_messages_of_others_are_a_record_of_bytes():
    def arrays(message):
        message.content[INBOX] = ArrayRecord({"2": Array(np.zeros(3))})

    all_refuse("to be a ConfigRecord, got", exact(), grid_of(change=("share", arrays)))

"""The client: answers with its own record; only what the mod makes of the answer is sent."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import randquant as rq
from randquant.flower import QuantizeMod

app = ClientApp(mods=[QuantizeMod(epsilon=1.0, delta=1e-6)])


@app.train()
def answer(message: Message, context: Context) -> Message:
    """Encode this client's record for the table that is asked."""
    mechanism = rq.SurveyMechanism(message.content["config"]["survey"])
    update = mechanism.update(records(context), rq.Key.generate())
    return Message(RecordDict({"arrays": ArrayRecord({"table": Array(update)})}), reply_to=message)


def records(context: Context) -> dict[str, np.ndarray]:
    """Yours to replace: this client's own records, one array for each column."""
    k = int(context.node_config["partition-id"])
    return {
        "age": np.array([30 + k % 40]), "sex": np.array(["fm"[k % 2]]),
        "bmi": np.array([20 + k % 10]), "days": np.array([100 * (k % 12)]),
        "died": np.array([k % 3 == 0]),
    }  # fmt: skip

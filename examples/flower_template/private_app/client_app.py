"""The client: trains on its own data; only protected bits of its update are sent."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from randquant.flower import QuantizeMod

app = ClientApp()


# The client's own limit, which no server can raise. A SuperNode may set another in its node-config
# (`randquant-epsilon`), and must name a file for its account (`randquant-ledger`). The limit counts
# on the other clients in a sum: that the server has not invented them is checked with
# `randquant-identity` and `randquant-directory`.
@app.train(mods=[QuantizeMod(epsilon=8.0, delta=1e-5)])
def train(message: Message, context: Context) -> Message:
    """Return the trained model; the mod turns it into what may be sent.

    What trains is imported here. Flower starts a process for each message, and only one of the
    five of a secure sum trains: at the top, torch would be imported for all of them.
    """
    from private_app import task

    model = task.build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    part = int(context.node_config["partition-id"])
    parts = int(context.node_config["num-partitions"])
    metrics = MetricRecord({**task.train(model, task.client_data(part, parts))})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)

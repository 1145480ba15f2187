"""The client: one gradient step on its own data, of which only protected bits are sent."""

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from randquant.flower import QuantizeMod

EPSILON, DELTA = 8.0, 1e-5
"""Most that a client answers for, unless its SuperNode says otherwise (`randquant-epsilon`)."""

app = ClientApp()


# Sums of hundreds are slow where all share masks with all: a SuperNode asks for that by
# `--node-config "randquant-all-neighbours=true"`.
@app.train(mods=[QuantizeMod(epsilon=EPSILON, delta=DELTA, all_neighbours=False)])
def train(message: Message, context: Context) -> Message:
    """The model after one step on this client's data, as without privacy; the mod does the rest.

    It imports torch here, not above: the other steps of a secure sum do without, and each may be
    a new process.
    """
    from flower_app import task

    client = int(context.node_config["partition-id"])
    data_dir = str(context.node_config.get("data-dir", ""))
    model, learner = task.build(context.run_config, client, data_dir)
    (old,) = message.content.array_records.values()
    model.load_state_dict(old.to_torch_state_dict())
    (gradient,), _ = learner.updates([0])
    learner.load(learner.parameters() - gradient)
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)

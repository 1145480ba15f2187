"""The client: one gradient step on its own data; only protected bits of it are sent."""

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from randquant.flower import QuantizeMod

EPSILON, DELTA = 8.0, 1e-5
"""A client's limit, unless its SuperNode sets another (`randquant-epsilon`)."""

app = ClientApp()


# Sums of hundreds of clients are slow if all share masks with all others: a SuperNode requires that
# with `--node-config "randquant-all-neighbours=true"`.
@app.train(mods=[QuantizeMod(epsilon=EPSILON, delta=DELTA, all_neighbours=False)])
def train(message: Message, context: Context) -> Message:
    """Return the model after one step on this client's data, without privacy: the mod adds it.

    Torch is imported here, because the other steps of a secure sum do not need it, and each may run
    in a new process.
    """
    from flower_app import task

    client = int(context.node_config["partition-id"])
    model, learner = task.build(context.run_config, client)
    (old,) = message.content.array_records.values()
    model.load_state_dict(old.to_torch_state_dict())
    learner.load(task.weights(model))
    (gradient,), _ = learner.updates([0])
    learner.load(learner.parameters() - gradient)
    new = learner.trained_model().state_dict()
    return Message(RecordDict({"arrays": ArrayRecord(new)}), reply_to=message)

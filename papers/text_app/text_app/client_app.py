"""The client, a role: adapters in, adapters out; only protected bits of them are sent."""

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from randquant.flower import QuantizeMod

app = ClientApp()


@app.train(mods=[QuantizeMod(epsilon=8.0, delta=1e-5)])
def train(message: Message, context: Context) -> Message:
    """Return the adapters after one step on this role's windows, without privacy: the mod adds it.

    Torch is imported here: the other steps of a secure sum do not need it.
    """
    from randquant.channels import Key
    from text_app import task

    config = context.run_config
    folder = str(context.node_config.get("data-dir", config["data-dir"]))
    model = task.model(config, folder)
    (old,) = message.content.array_records.values()
    model.load_state_dict(old.to_torch_state_dict(), strict=False)
    windows = task.roles(folder).clients[int(context.node_config["partition-id"])]
    learner = task.learner(model, windows, config["batch"])
    (gradient,), _ = learner.updates([0], Key.generate())
    learner.load(learner.parameters() - gradient)
    new = task.adapters(learner.trained_model())
    return Message(RecordDict({"arrays": ArrayRecord(new)}), reply_to=message)

"""A hospital: computes the sum of its patients' clipped gradients."""

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import randquant as rq
from hospital_app import task
from randquant.flower import QuantizeMod

# A public number, the same at all hospitals: all their patients over how many hospitals there are.
PATIENTS, CLIP_NORM = 114, 1.0

app = ClientApp()


# The hospital's own limit, for one patient, which no server can raise.
@app.train(mods=[QuantizeMod(epsilon=2.0, delta=1e-5, examples=PATIENTS, clip_norm=CLIP_NORM)])
def train(message: Message, context: Context) -> Message:
    """Return a sum instead of a model; the mod divides it, and turns it into what may be sent."""
    model = task.build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = task.patients(task.file_of(context))
    update = rq.example_update(model, data, clip_norm=CLIP_NORM)
    return Message(RecordDict({"update": ArrayRecord(update)}), reply_to=message)

"""A job of NVFlare in one process: real Shareables and DXOs, as they travel."""

import dataclasses
from types import SimpleNamespace

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.decomposers import common_decomposers

from randquant.aggregation import VectorMechanism
from randquant.integrations import JobOptions, QuantizeController, QuantizeFilter
from randquant.mechanisms import stochastic_rounding

common_decomposers.register()  # of arrays, as NVFlare's processes do

SITES = ("cleveland", "hungary", "va")
MECHANISM = VectorMechanism(stochastic_rounding(clip=0.5, levels=2, margin=0.1), clip_norm=1.0)
MODEL = {
    "weight": np.zeros((3, 4), np.float32),
    "bias": np.zeros(2, np.float32),
    "bn.running_mean": np.ones(3, np.float32),
    "bn.num_batches_tracked": np.array(5),
}
LEFT = ("bn.running_mean", "bn.num_batches_tracked")
"""What is no parameter: neither sent nor changed."""
UPDATE = {"weight": np.full((3, 4), 0.1, np.float32), "bias": np.full(2, -0.2, np.float32)}


def result(data=UPDATE, kind=DataKind.WEIGHT_DIFF, meta=None):
    """What an executor returns, with what NVFlare's client API adds in clear."""
    reply = DXO(kind, data, {"NUM_STEPS_CURRENT_ROUND": 303, "secret": 7, **(meta or {})})
    reply = reply.to_shareable()
    reply.set_header("patients", 303)
    return reply


class Server:
    """Controller with an engine whose sites are filters in this process."""

    def __init__(self, folder, train=lambda site, task: result(), limit=1e9, **options):
        self.filters = {
            site: QuantizeFilter(
                limit, str(folder / "sites"), examples=options.get("examples"), clip_norm=1.0
            )
            for site in SITES
        }
        self.train, self.saved, self.log, self.tamper = train, [], [], lambda site, reply: reply
        self.context = FLContextManager(identity_name="server", job_id="job").new_context()
        mechanism = options.pop("mechanism", MECHANISM).record()
        names = [field.name for field in dataclasses.fields(JobOptions)]
        rest = JobOptions(**{name: options.pop(name) for name in names if name in options})
        options = {"rounds": 3, "options": rest, **options}
        self.controller = QuantizeController(mechanism, folder=str(folder / "server"), **options)
        self.sums, self.controller._begin_sum = [], self._noted
        self.controller._engine = self
        self.controller.communicator = self
        for level in ("info", "warning", "error"):
            setattr(self.controller, f"log_{level}", lambda _, text: self.log.append(text))
        self.controller.system_panic = lambda reason, _: self.log.append(f"panic {reason}")
        self.controller.start_controller(self.context)

    def get_component(self, _):
        return self

    def get_clients(self):
        return [SimpleNamespace(name=site) for site in SITES]

    def load(self, _):
        return make_model_learnable({name: array.copy() for name, array in MODEL.items()}, {})

    def save(self, learnable, _):
        self.saved.append(learnable["weights"])

    def _noted(self, sites, log):
        self.sums.append(QuantizeController._begin_sum(self.controller, sites, log))
        return self.sums[-1]

    def broadcast_and_wait(self, task, context, sites, *_):
        for site in sites:
            reply = self.tamper(site, self.answer(site, task.data))
            for each in reply if isinstance(reply, list) else [reply]:
                received = Shareable.from_bytes(each.to_bytes())  # as it travels
                client = SimpleNamespace(client=SimpleNamespace(name=site), result=received)
                task.result_received_cb(client, context)

    def answer(self, site, task):
        try:
            return passed(self.filters[site], site, task, self.train)
        except ValueError as error:
            self.log.append(f"{site}: {error}")
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)

    def run(self):
        self.controller.control_flow(Signal(), self.context)
        return self


def context_of(site):
    return FLContextManager(identity_name=site, job_id="job").new_context()


def passed(filter_, site, task, train):
    """One task as NVFlare's client runner handles it."""
    context = FLContextManager(identity_name=site, job_id="job").new_context()
    context.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.IN, private=True, sticky=False)
    task = filter_.process(Shareable.from_bytes(task.to_bytes()), context)
    context.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.OUT, private=True, sticky=False)
    return filter_.process(train(site, task), context)


def asked(server):
    """A task as the controller sends it; `server.sum` takes the answers."""
    controller = server.controller
    server.sum = controller._begin_sum(list(SITES), controller._logger(server.context))
    return controller._task_data(server.sum)

"""The site's side on NVFlare: a filter that lets only protected updates out."""

from __future__ import annotations

from logging import WARNING
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from randquant._internal.files import make_folder
from randquant.integrations.nvflare import tasks
from randquant.privacy.guarantee import Neighboring
from randquant.rounds.limits import ClientLimits
from randquant.rounds.member import AgreedUpload, Member
from randquant.rounds.parameter_layout import Arrays, check_precision

FAILED = ReturnCode.EXECUTION_EXCEPTION
FAILURES = tuple(code for name, code in vars(ReturnCode).items() if name.isupper() and name != "OK")
"""NVFlare's own return codes of failed tasks; any other is replaced by FAILED."""

AGREED_KEY = "randquant.asked"
"""Key of the agreed request, and of its model, in the context of a task."""


class QuantizeFilter(Filter):
    """Replaces what a site would send by the codes of its update, as `QuantizeController` asks.

    Configure it both for task data and for task results, in the site's own `privacy.json` or in a
    job, last in each chain. Everything but a protected update is refused: NVFlare then reports an
    error without data to the server.

    Args:
        epsilon: limit of this site's epsilon at `delta` by a proven bound that the site computes
            itself. It counts its own answers, and refuses one that would exceed the limit.
        folder: holds the site's account, `NAME.account`, over all jobs; written before anything
            that it counts is sent.
        delta: in (0, 1).
        neighboring: what the guarantee hides.
        examples: the public number by which this filter divides what the training code sends as
            WEIGHT_DIFF, once a round: the sum of its examples' (patients') gradients, each clipped
            to `clip_norm` (`randquant.example_update`). The limit is then for one example. None: it
            is for all data of the site.
        helper: public identity, 64 hexadecimal digits, of the helper of secure sums that this site
            trusts not to collude with the server. None: only updates with all their noise are sent.
        identity: file in PEM of this site's Ed25519 key, which signs what it sends the helper, if
            the helper has a directory.
        clip_norm: what the training code clips gradients to, needed with `examples`: a mechanism
            with a smaller threshold, by which an example would count for less, is refused.

    Guarantees:
        What is sent is drawn from the certified channel with a key from the operating system. An
        answer is in the account, on the disk, before it is sent. A request is answered once.

    Example:
        >>> QuantizeFilter(epsilon=2.0, folder="accounts", examples=120).examples
        120
    """

    def __init__(
        self,
        epsilon: float,
        folder: str,
        delta: float = 1e-5,
        neighboring: Neighboring = "replace_one",
        examples: int | None = None,
        helper: str | None = None,
        identity: str | None = None,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__()
        self.epsilon, self.folder, self.delta = epsilon, folder, delta
        self.neighboring: Neighboring = neighboring
        self.examples, self.helper, self.identity = examples, helper, identity
        self.clip_norm = clip_norm
        # It has the account's version, so that an older copy put in its place is noticed.
        self._state: dict[str, dict[str, Any]] = {}
        self._limits()  # for its ValueError: settings fail when the site starts, not in a job

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Check a task before training, or replace its result by a protected update.

        Raises:
            ValueError: it is refused; NVFlare reports that without data.
        """
        member = self._member(fl_ctx)
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            request = tasks.request_in(shareable)
            model = tasks.read_arrays(tasks.read_data(shareable))
            agreed = member.agree(request, model)
            # Only a check: a request beyond the limit costs the site no training.
            member.charge(agreed.membership)
            # Private: NVFlare does not send it. Not sticky: it ends with the task.
            fl_ctx.set_prop(AGREED_KEY, (agreed, model), private=True, sticky=False)
            return shareable
        agreed, old = fl_ctx.get_prop(AGREED_KEY) or (None, {})
        if agreed is not None:
            # Before anything leaves, a failure too, which may depend on data: the account may
            # overstate what was sent, and never understate.
            member.charge(agreed.membership, agreed.request.step)
        if (code := shareable.get_return_code()) != ReturnCode.OK:
            # A new reply, with a code of NVFlare's own: training code could hide data in either.
            return make_reply(next((known for known in FAILURES if known == code), FAILED))
        if agreed is None:
            raise ValueError(
                "Expected a request before its answer, got an answer alone: configure "
                "QuantizeFilter for task data and for task results."
            )
        payload = self._encode(member, agreed, old, tasks.read_data(shareable))
        return tasks.build_result(member.upload(agreed, payload))

    def _encode(self, member: Member, agreed: AgreedUpload, old: Arrays, result: DXO) -> bytes:
        if result.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            raise ValueError(f"Expected an update or a model, got {result.data_kind!s}.")
        whole = result.data_kind == DataKind.WEIGHTS
        new, numbers = tasks.read_arrays(result), tasks.read_numbers(result)
        if self.examples is not None:
            check_precision(agreed.layout.parts, result.data)  # before it is read as float64
        return member.encode(agreed, old, new, numbers, whole)

    def _limits(self) -> ClientLimits:
        trust = "local" if self.helper is None else "aggregate"
        return ClientLimits(
            self.epsilon, self.delta, self.neighboring, trust, helper=self.helper,
            examples=self.examples, clip_norm=self.clip_norm,
        )  # fmt: skip

    def _member(self, fl_ctx: FLContext) -> Member:
        name = tasks.site_name(fl_ctx.get_identity_name())
        make_folder(Path(self.folder))
        files = {"randquant-ledger": str(Path(self.folder) / f"{name}.account")}
        if self.identity is not None:
            files["randquant-identity"] = self.identity

        def log(level: int, line: str) -> None:
            (self.log_warning if level >= WARNING else self.log_info)(fl_ctx, line)

        return Member(tasks.number(name), self._limits(), self._state, files, log, drawn=False)

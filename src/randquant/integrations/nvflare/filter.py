"""A site's side on NVFlare: nothing of training leaves it but protected updates."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from randquant._internal import validate
from randquant._internal.disk import make_folder
from randquant._internal.rounding import round_up
from randquant.channels.keys import Key
from randquant.integrations.accountant import RoundEvent
from randquant.integrations.ledger import OWN, AnswerLedger
from randquant.integrations.nvflare.request import (
    PAYLOAD,
    REQUEST,
    SESSION,
    SESSION_BYTES,
    Request,
    SiteAccountant,
    data_of,
    header_of,
    site_name,
)
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring

FAILED = ReturnCode.EXECUTION_EXCEPTION
FAILURES = tuple(code for name, code in vars(ReturnCode).items() if name.isupper() and name != "OK")
"""NVFlare's own reasons why there is no result; FAILED stands for all others."""

ASKED = "randquant.asked"
"""Where the context of a task keeps what the server asked for."""


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
        examples: how many examples (patients) this site's updates are means of, or fewer: the
            limit is then for one of them. Its training code must clip the gradient of each
            example to the mechanism's `clip_norm` and send the mean, as WEIGHT_DIFF. None: the
            limit is for all data of the site.

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
    ) -> None:
        super().__init__()
        if epsilon != math.inf:
            validate.real("epsilon", epsilon, above=0)
        if examples is not None:
            validate.whole("examples", examples, low=1)
        self.epsilon, self.folder, self.delta = epsilon, folder, delta
        validate.choice("neighboring", neighboring, NEIGHBORINGS)
        self.neighboring: Neighboring = neighboring
        self.examples = examples
        self._account()  # checks delta

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Check a task before training, or replace its result by a protected update.

        Raises:
            ValueError: it is refused; NVFlare reports that without data.
        """
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            request, session = self._request(shareable)
            with self._ledger(fl_ctx).checked(functools.partial(self._check, request)):
                pass  # nothing is spent yet
            asked = (request, session, request.layout.flatten(data_of(shareable).data))
            fl_ctx.set_prop(ASKED, asked, private=True, sticky=False)
            return shareable
        if (code := shareable.get_return_code()) != ReturnCode.OK:
            # Nothing that failed training left behind, in the code's place either.
            return make_reply(next((own for own in FAILURES if own == code), FAILED))
        return self._answer(shareable, fl_ctx)

    def _answer(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        asked = fl_ctx.get_prop(ASKED)
        if asked is None:
            raise ValueError(
                "Expected a request before its answer, got none: configure QuantizeFilter for "
                "task data and for task results."
            )
        request, session, old = asked
        update = self._update(request, old, data_of(shareable))
        site = site_name(fl_ctx.get_identity_name())
        mechanism, _, _ = request.in_session(session, site)
        payload = request.addressed(mechanism.encode(update, Key.generate()), session, site)
        check = functools.partial(self._check, request)
        with self._ledger(fl_ctx).checked(check) as ledger:
            if not ledger.first(session, "upload"):
                raise ValueError("Expected a new request, got one that was answered before.")
            ledger.accountant.compose(RoundEvent(request, frozenset({OWN})))
            ledger.save()
        self.log_info(fl_ctx, f"randquant: this site's answers, {ledger.accountant.told()}")
        return DXO(DataKind.APP_DEFINED, {PAYLOAD: payload}).to_shareable()

    def _request(self, task: Shareable) -> tuple[Request, bytes]:
        text, session = header_of(task, REQUEST), header_of(task, SESSION)
        if not (isinstance(text, str) and isinstance(session, bytes)):
            raise ValueError(
                "Expected a task of QuantizeController, got another: it has no request."
            )
        if len(session) != SESSION_BYTES:
            raise ValueError(f"Expected a session of {SESSION_BYTES} bytes, got {len(session)}.")
        return replace(Request.from_text(text), examples=self.examples), session

    def _update(self, request: Request, old: np.ndarray, result: DXO) -> np.ndarray:
        """The update (d,) float32 of a result that is an update or a model."""
        if result.data_kind == DataKind.WEIGHT_DIFF:
            return _single(request.layout.flatten(result.data))
        if result.data_kind != DataKind.WEIGHTS:
            raise ValueError(f"Expected an update or a model, got {result.data_kind!s}.")
        if self.examples is not None:  # a difference of rounded models may differ by more
            raise ValueError(
                "Expected the mean of clipped gradients as WEIGHT_DIFF, got a model: one "
                "example's influence on a model is not bounded."
            )
        return _single(request.layout.flatten(result.data) - old)

    def _check(self, request: Request, accountant: SiteAccountant) -> None:
        """Raise ValueError unless this site's limit allows an answer."""
        event = RoundEvent(request, frozenset({OWN}))
        if accountant.would_exceed(event):
            accountant.compose(event)
            raise ValueError(
                f"Expected a request within epsilon {self.epsilon}, this site's limit, got "
                f"{_shown(accountant.get_epsilon(self.delta))} with all earlier answers, at delta "
                f"{self.delta}."
            )

    def _account(self) -> SiteAccountant:
        return SiteAccountant(self.delta, self.neighboring, self.epsilon)

    def _ledger(self, fl_ctx: FLContext) -> AnswerLedger[SiteAccountant]:
        name = site_name(fl_ctx.get_identity_name())
        make_folder(Path(self.folder))
        return AnswerLedger(self._account(), Path(self.folder) / f"{name}.account")


def _single(update: np.ndarray) -> np.ndarray:
    """As float32; what is too large becomes infinite, which no mechanism encodes."""
    with np.errstate(over="ignore"):
        return update.astype(np.float32)


def _shown(value: float) -> str:
    return "infinity" if math.isinf(value) else round_up(value)

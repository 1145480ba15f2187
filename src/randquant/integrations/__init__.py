"""Adapters to engines for federated learning."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.integrations.accountant import RoundEvent, RunAccountant
    from randquant.integrations.among_clients import AmongClients, SecureSum
    from randquant.integrations.flower.grids import PollingGrid
    from randquant.integrations.flower.messages import (
        HEAD,
        INBOX,
        STYPE,
        ClientState,
        arrays_of,
        payload_record,
        read_payload,
    )
    from randquant.integrations.flower.mod import QuantizeMod, TooFewNodes
    from randquant.integrations.flower.planned import ParameterFree
    from randquant.integrations.flower.strategy import QuantizedStrategy
    from randquant.integrations.foreign import DamagedFile
    from randquant.integrations.helper_service import (
        CALLS_OF_ONE,
        TLS,
        RemoteHelper,
        ServiceLimits,
        helper_of,
        service,
        within,
        write_certificates,
    )
    from randquant.integrations.history import History, RoundRow
    from randquant.integrations.ledger import OWN, SPENT, STEP_BYTES, AnswerLedger
    from randquant.integrations.limits import SUM, ClientLimits, Membership
    from randquant.integrations.member import (
        FILES,
        NOTHING,
        REFUSED,
        RELATIVE_LOSS,
        Agreed,
        Member,
        told,
    )
    from randquant.integrations.nvflare.controller import JobOptions, QuantizeController
    from randquant.integrations.nvflare.filter import QuantizeFilter
    from randquant.integrations.nvflare.tasks import REQUEST, SESSION, TERMS, number
    from randquant.integrations.offer import Offer
    from randquant.integrations.protocol import (
        LONGEST_SESSION,
        LONGEST_TEXT,
        RoundMessage,
        read_inbox,
        read_terms,
        terms_text,
        upload_format,
    )
    from randquant.integrations.run import RoundsFailed
    from randquant.integrations.sums import Intake, PlainSum
    from randquant.integrations.trained import Layout
    from randquant.integrations.untuned import REACH
    from randquant.integrations.with_helper import WithHelper

lazily(__name__)

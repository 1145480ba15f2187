"""A round: what is offered, who answers, what it costs, how answers are summed, what is kept.

No engine is in here; `integrations` has the transports.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.aggregation.layout import Layout
    from randquant.rounds.accountant import (
        ACCOUNT_RECORD,
        STEP_BYTES,
        THIS_CLIENT,
        AnswerLedger,
        DamagedFile,
        RoundEvent,
        RunAccountant,
    )
    from randquant.rounds.helper_service import (
        MAX_CALLS,
        MAX_CALLS_PER_CALLER,
        TLS,
        RemoteHelper,
        ServiceLimits,
        configured_helper,
        draw_noise,
        service,
        within,
        write_certificates,
    )
    from randquant.rounds.limits import MEMBERSHIP_RECORD, NEXT_RECORD, ClientLimits, Membership
    from randquant.rounds.member import (
        NO_LEDGER,
        NO_UPDATE,
        REFUSED_MESSAGE,
        RELATIVE_LOSS,
        UNUSABLE_FILES,
        AgreedUpload,
        Member,
        refusal_reason,
    )
    from randquant.rounds.offer import Offer, UpdatePreparation
    from randquant.rounds.parameter_free import (
        CLASSES_REACH_LENGTHS,
        REACH_LENGTHS,
        ParameterFreeStep,
        Predicts,
        usual_length,
    )
    from randquant.rounds.protocol import (
        MAX_SESSION_BYTES,
        MAX_TEXT_CHARACTERS,
        RoundMessage,
        read_inbox,
        read_terms,
        terms_text,
        upload_format,
    )
    from randquant.rounds.run import RoundsFailed, ServerRun, Target, UntunedSteps
    from randquant.rounds.statement import RELEASE_KINDS, ReleaseTerms, Statement, certificate_file
    from randquant.rounds.store import History, RoundRow, ServerStore, StoredRounds
    from randquant.rounds.sums import AmongClients, Intake, PlainSum, SecureSum, WithHelper

lazily(__name__)

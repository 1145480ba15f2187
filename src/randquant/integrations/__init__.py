"""Adapters to engines for federated learning."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.integrations.flower.dp_accountant import GaussianAccountant
    from randquant.integrations.flower.messages import (
        HEAD,
        INBOX,
        STYPE,
        ClientState,
        model_arrays,
        payload_record,
        read_payload,
    )
    from randquant.integrations.flower.mod import QuantizeMod
    from randquant.integrations.flower.planned import ParameterFree
    from randquant.integrations.flower.strategy import PollingGrid, QuantizedStrategy, TooFewNodes
    from randquant.integrations.nvflare.controller import JobOptions, QuantizeController
    from randquant.integrations.nvflare.filter import QuantizeFilter
    from randquant.integrations.nvflare.tasks import REQUEST, SESSION, TERMS, number

lazily(__name__)

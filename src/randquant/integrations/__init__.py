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
        PollingGrid,
        model_arrays,
        payload_record,
        read_payload,
    )
    from randquant.integrations.flower.mod import QuantizeMod
    from randquant.integrations.flower.strategy import ParameterFree, QuantizedStrategy, TooFewNodes
    from randquant.integrations.nvflare import (
        REQUEST,
        SESSION,
        TERMS,
        JobOptions,
        QuantizeController,
        QuantizeFilter,
        site_number,
    )

lazily(__name__)

"""Secure sums with a helper: a client sends one message, the server learns the sum and no more.

The server adds masked vectors, and a helper that does not collude with it removes the sum of their
masks. Neither learns a client's vector. Where clients prove their codes valid, both check the
proofs. Proofs of all this, and limits: `docs/theory/helper-sums.md`.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.secure_sums.helper.collector import HelperSum
    from randquant.secure_sums.helper.helper import Helper, HelperLimits
    from randquant.secure_sums.helper.message import HelperKey, HelperTerms, masked_message
    from randquant.secure_sums.helper.proven import proven_message, verify_key_commitment

__all__ = [
    "Helper",
    "HelperKey",
    "HelperLimits",
    "HelperSum",
    "HelperTerms",
    "masked_message",
    "proven_message",
    "verify_key_commitment",
]  # fmt: skip

lazily(__name__)

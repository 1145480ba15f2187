"""Secure sums: among clients, with a helper, and with proofs that codes are valid."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.secure_sums.helper.circuits import (
        Field64,
        SumVec,
        XofTurboShake128,
        chunk_length,
    )
    from randquant.secure_sums.helper.collector import HelperSum
    from randquant.secure_sums.helper.helper import Helper, HelperJournal, HelperLimits
    from randquant.secure_sums.helper.message import (
        SEED_BYTES,
        SUITES,
        HelperKey,
        HelperTerms,
        JointSeed,
        OpeningKey,
        SealedSeed,
        masked_message,
        read_message,
        sign_commitment,
    )
    from randquant.secure_sums.helper.prio3 import (
        Flp,
        LeaderShare,
        Prio3,
        decode_input_share,
        decode_public_share,
        decode_verifier_share,
        encode_input_share,
        encode_public_share,
        encode_verifier_share,
    )
    from randquant.secure_sums.helper.proven import (
        message_bytes,
        prio3_for,
        proven_bytes,
        proven_message,
        read_proven,
        verify_key_commitment,
    )
    from randquant.secure_sums.helper.request import (
        LEFT_OUT,
        MAX_OFFER_BYTES,
        HelperRequest,
        read_answer,
        write_answer,
        write_listed,
        write_request,
    )
    from randquant.secure_sums.secagg.client import KEY, SEED, Client, Dealing
    from randquant.secure_sums.secagg.crypto import (
        ORDER,
        SCALAR_BYTES,
        SEALED_BYTES,
        Advert,
        accusation,
        confirmation,
        masked_format,
        masking_key,
        masking_private,
        pair_context,
        random_word,
        read_scalar,
        seal,
        sealing_key,
        self_masking_key,
        survivors_digest,
        unseal,
    )
    from randquant.secure_sums.secagg.server import SumServer
    from randquant.secure_sums.terms import (
        HASH_BYTES,
        MAX_CLIENTS,
        MAX_NEIGHBOURS,
        Draw,
        Losses,
        ProtocolError,
        Terms,
        add_masks,
        check_directory,
        check_identity,
        mask_dtype,
    )

lazily(__name__)

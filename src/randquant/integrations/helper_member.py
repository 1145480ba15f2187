"""A helper that is one more member of the federation: a SuperNode, or a site of NVFlare.

Such a member connects to the server by itself, as clients do, so that no port must be open for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from randquant._internal import validate
from randquant._internal.files import make_folder
from randquant.integrations.foreign import DamagedFile
from randquant.integrations.helper_service import within
from randquant.integrations.limits import JOURNAL
from randquant.integrations.limits import identity as read_identity
from randquant.integrations.protocol import Ask
from randquant.secure_sums.helper.helper import Helper, HelperLimits
from randquant.secure_sums.helper.sealing import HelperKey
from randquant.secure_sums.secagg.terms import ProtocolError

SETTINGS = frozenset(
    {
        JOURNAL, "randquant-identity", "randquant-directory", "randquant-helper-least",
        "randquant-helper-most-sums", "randquant-helper-examples", "randquant-helper-clients",
        "randquant-helper-coordinates", "randquant-helper-masks", "randquant-epsilon",
        "randquant-delta",
    }
)  # fmt: skip
"""All that a helper's operator may set."""

KEY = b""
"""A request for the key that clients seal to."""


class HelperMember:
    """A helper that takes part in the engine's run, and trains nothing.

    Its operator names its files in its own settings (docs/helper-sums.md), which no server sees.

    Args:
        name: number of the SuperNode, as `flwr supernode list` prints it; name of the site.

    Raises:
        TypeError, ValueError: it is neither a number nor a text.

    Example:
        >>> HelperMember("agency").name
        'agency'
    """

    def __init__(self, name: int | str) -> None:
        if not isinstance(name, str):
            name = validate.whole("name", name, low=0)
        self.name = name
        self._ask: Ask | None = None
        self._known: HelperKey | None = None  # it is kept, and each request takes a message

    def reached_by(self, ask: Ask) -> None:
        """Use an engine's messages, before anything else."""
        self._ask, self._known = ask, None

    @property
    def key(self) -> HelperKey:
        """The key that clients seal to; OSError or ProtocolError if there is none."""
        if self._known is None:
            answer = self.answer(KEY)
            try:
                self._known = HelperKey.from_record(json.loads(answer))
            except (ValueError, RecursionError) as error:
                raise ProtocolError("Expected a helper's key, got something else.") from error
        return self._known

    def answer(self, request: bytes) -> bytes:
        """The member's answer to a request; OSError or ProtocolError if there is none."""
        if self._ask is None:
            raise OSError("no run has begun")
        try:
            return self._ask(self.name, request)
        except (OSError, ProtocolError):
            self._known = None  # it may have another key by now
            raise


def answered(settings: Mapping[str, Any], request: bytes) -> bytes:
    """A helper's answer to a request, in a process that may end after it.

    Args:
        settings: its operator's.
        request: `KEY`, or one of `Helper.answer`.

    Raises:
        ProtocolError: this member is no helper, or the helper refuses.
        OSError, DamagedFile: a file cannot be used.
    """
    if JOURNAL not in settings:
        raise ProtocolError("Expected a request to a helper, got one to a member that is none.")
    if not Path(str(settings[JOURNAL])).is_absolute():  # each process would have another journal
        raise DamagedFile(
            f"Expected {JOURNAL} to be a folder's whole path, got {settings[JOURNAL]!r}."
        )
    helper = helper_of(settings, kept=True)
    return json.dumps(helper.key.to_record()).encode() if request == KEY else helper.answer(request)


def helper_of(settings: Mapping[str, Any], *, kept: bool = False) -> Helper:
    """The helper that its operator's settings describe.

    Args:
        settings: `randquant-helper-journal`, a folder; `randquant-identity`, its key in PEM;
            and any of `randquant-directory` (as of a client), `randquant-helper-` with `least`,
            `most-sums`, `clients`, `coordinates`, `masks` (`HelperLimits`) or `examples`,
            `randquant-epsilon` and `randquant-delta` (`within`).
        kept: see `Helper`.

    Raises:
        DamagedFile, OSError: a file cannot be used.
        TypeError, ValueError: a setting is out of bounds, or none of a helper: a limit that is
            misspelled would limit nothing.
    """
    ours = sorted(name for name in settings if name.startswith("randquant-"))
    if unknown := [name for name in ours if name not in SETTINGS]:
        raise ValueError(
            f"Expected settings of a helper ({', '.join(sorted(SETTINGS))}), got {unknown[0]}."
        )
    identity, directory = read_identity(settings)
    if not isinstance(identity, Ed25519PrivateKey):
        raise DamagedFile("Expected a helper's key in randquant-identity, got none.")
    folder = Path(str(settings[JOURNAL]))
    make_folder(folder)
    return Helper(folder, identity, _limits(settings), directory, kept=kept)


def _limits(settings: Mapping[str, Any]) -> HelperLimits:
    epsilon = float(settings.get("randquant-epsilon", math.inf))
    delta = float(settings.get("randquant-delta", 1e-5))
    affords = within(epsilon, delta, _whole(settings, "examples"))
    names = ("least", "most_sums", "clients", "coordinates", "masks")
    numbers = {name: _whole(settings, name.replace("_", "-")) for name in names}
    set_ = {name: value for name, value in numbers.items() if value is not None}
    return HelperLimits(**set_, affords=affords)


def _whole(settings: Mapping[str, Any], name: str) -> Any:
    """A number, which may be in text; `HelperLimits` and `within` check that it is whole."""
    value = settings.get(f"randquant-helper-{name}")
    return int(value) if isinstance(value, str) else value

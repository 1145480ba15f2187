"""The Flower adapter under its short name: see `randquant.integrations.flower`."""

import sys
from typing import TYPE_CHECKING

from randquant.integrations import flower

if TYPE_CHECKING:
    from randquant.integrations.flower import *  # noqa: F403

__all__ = flower.__all__  # pyright: ignore[reportUnsupportedDunderAll]

sys.modules[__name__] = flower

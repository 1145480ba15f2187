"""What a release reveals: certificates of one release, the account of a whole run."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant._internal.rounding import round_down, round_up
    from randquant.privacy.divergence import renyi

__all__ = ["renyi", "round_down", "round_up"]

lazily(__name__)

"""What the papers' entries compute, each computed once for all tests of a process."""

import functools

from randquant_papers.registry import reproduce
from randquant_papers.result import Reproduction


@functools.cache
def reproduced(name: str) -> Reproduction:
    """As `reproduce` returns it; to be read only."""
    return reproduce(name)

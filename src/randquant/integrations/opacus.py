"""Opacus with this package's account: importing this module registers the accountant `randquant`.

    import randquant.integrations.opacus
    engine = opacus.PrivacyEngine(accountant="randquant")
    model, optimizer, loader = engine.make_private(...)
    engine.accountant.batches_from(loader)

Unit, relation and sampling are those that Opacus assumes: one example, added or removed with the
number of examples public (`zero_out`), in batches drawn by Poisson sampling.
"""

# pyright: reportMissingImports=false
# Opacus is an extra, and is not installed everywhere that types are checked.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from randquant._internal.imports import needed
from randquant.privacy.accounting.ledger import GaussianSteps
from randquant.privacy.guarantee import Guarantee

with needed("Opacus' accountants", "opacus"):
    from opacus.accountants import PRVAccountant, register_accountant
    from opacus.optimizers import AdaClipDPOptimizer
    from opacus.utils.uniform_sampler import (
        DistributedUniformWithReplacementSampler,
        UniformWithReplacementSampler,
    )

NAME = "randquant"
PoissonSampler = UniformWithReplacementSampler | DistributedUniformWithReplacementSampler
RATE_ERROR = 2.0**-23
"""Most by which a rate of Opacus' samplers exceeds the stated one: they compare random 32-bit
floats, multiples of 2**-24, with the rate, which is rounded to one (theory/sampling.md,
Proposition 1)."""


class OpacusAccountant(PRVAccountant):
    """Opacus' accountant protocol, answered by `rq.GaussianSteps`; its base keeps the history.

    Guarantees:
        `get_epsilon` is an upper bound for Poisson batches of real-valued Gaussian noise. Where
        the batches of a run are others the optimizer's first step raises, before anything is
        released: for loaders that shuffle, for gradients accumulated over several batches, for
        adaptive clipping.

    Example:
        >>> accountant = OpacusAccountant()
        >>> for _ in range(1000):
        ...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
        >>> print(accountant.guarantee(1e-5))
        epsilon <= 1.82895 at delta = 1e-05 (zero_out example, central trust, hidden cohorts)
    """

    def __init__(self) -> None:
        super().__init__()
        self._rate: float | None = None

    def batches_from(self, data_loader: Any) -> None:
        """Check that a loader draws each example independently; call it before training.

        Args:
            data_loader: the loader that `make_private` returned.

        Raises:
            ValueError: it does not: then sampling amplifies nothing that is proven here.
        """
        sampler = data_loader.batch_sampler
        if not isinstance(sampler, PoissonSampler):
            raise ValueError(
                f"Expected batches drawn by Poisson sampling, got {type(sampler).__name__}: where "
                "data are shuffled an example is in one batch of each pass, and sampling does not "
                "amplify. Use poisson_sampling=True, or count the passes with rq.GaussianSteps."
            )
        self._rate = float(sampler.sample_rate)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """Return what the optimizer calls in each step, when noise is drawn and before it is used.

        Raises:
            ValueError: (what is returned, when called) the step is not of one Poisson batch with a
                fixed clip norm.
        """

        def hook(optimizer: Any) -> None:
            # The loader's rate is the one that is drawn with. If the engine was told of another,
            # the larger one counts, which costs more.
            rate = max(sample_rate, self._checked_rate(optimizer))
            self.step(noise_multiplier=float(optimizer.noise_multiplier), sample_rate=rate)

        return hook

    def get_epsilon(self, delta: float, **options: Any) -> float:
        """Return epsilon, an upper bound.

        Args:
            delta: of the guarantee.
            options: of other accountants; none is needed here.
        """
        return self.guarantee(delta).epsilon

    def guarantee(self, delta: float) -> Guarantee:
        """Return epsilon with all that it is for."""
        steps = GaussianSteps("zero_out", "example")
        for noise_multiplier, sample_rate, times in self.history:
            rate = min(sample_rate + RATE_ERROR, 1.0)
            steps.step(noise_multiplier, drawn="poisson", rate=rate, times=times)
        return steps.guarantee(delta)

    @classmethod
    def mechanism(cls) -> str:
        return NAME

    def _checked_rate(self, optimizer: Any) -> float:
        if self._rate is None:
            raise ValueError(
                "Expected to know how batches are drawn, got a step of an unknown loader: call "
                "engine.accountant.batches_from(loader) with the loader of make_private."
            )
        batches = optimizer.accumulated_iterations
        if batches != 1:
            raise ValueError(
                f"Expected the gradients of one Poisson batch in a step, got {batches} batches: an "
                "example may be in several of them, and moves the sum by that many clip norms. "
                "Draw one larger batch, and split it with Opacus' BatchMemoryManager."
            )
        # The second name is that of ghost clipping, and there only once the norm is adapted.
        if isinstance(optimizer, AdaClipDPOptimizer) or hasattr(
            optimizer, "_adjusted_noise_multiplier"
        ):
            raise ValueError(
                "Expected a fixed clip norm, got adaptive clipping: its second query, how many "
                "examples are clipped, is divided by the size of the Poisson batch, which no "
                "noise covers. Use clipping='flat' or 'per_layer'."
            )
        return self._rate


# By force, since a notebook that reloads this module registers the name again.
register_accountant(NAME, OpacusAccountant, force=True)

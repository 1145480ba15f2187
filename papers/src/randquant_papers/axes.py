"""Axes that figures of several papers have."""

from randquant.reports import Axis

ORDER = Axis("Rényi order (log scale)", log=True)
"""The order of a Rényi divergence."""

DIVERGENCE = Axis("Rényi divergence, nats", zero=True, bound=True)
"""A certified divergence: its upper end."""

"""NVFlare with private updates: `QuantizeFilter` at a site, `QuantizeController` on the server.

What is sent, and who can learn what: `docs/nvflare.md`.
"""

from randquant.integrations.nvflare import installed
from randquant.integrations.nvflare.controller import JobOptions, QuantizeController
from randquant.integrations.nvflare.filter import QuantizeFilter

__all__ = ["JobOptions", "QuantizeController", "QuantizeFilter"]

"""What the adapter to NVFlare needs, imported first: what is missing is named in one sentence."""

from randquant._internal.extras import load

for _module in ("nvflare.apis.filter", "nvflare.apis.impl.controller"):
    load(_module, "NVFlare", "nvflare")

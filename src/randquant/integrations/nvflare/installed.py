"""Imports that the NVFlare adapter needs, tried first: an error names the missing extra."""

from randquant._internal.imports import load

for _module in ("nvflare.apis.filter", "nvflare.apis.impl.controller"):
    load(_module, "NVFlare", "nvflare")

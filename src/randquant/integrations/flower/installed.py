"""What the adapter to Flower needs, imported first: what is missing is named in one sentence."""

from randquant._internal.imports import load

for _module in ("flwr.serverapp.strategy", "flwr.clientapp.mod", "nacl.bindings"):
    load(_module, "Flower", "flower")

"""`randquant.train` with all settings by their names, for tests that share and vary them."""

import randquant as rq
from randquant.training import PLACES

VALUES = {"local": rq.Local, "server": rq.Server, "privacy": rq.Privacy}


def train(model, clients, **settings):
    """Train with settings by their names among all settings, such as local_epochs=2.

    On one thread unless told: two wait for each other where every core has a test.
    """
    parts = {part: {} for part in VALUES}
    own = {}
    for name, value in {"threads": 1, **settings}.items():
        part, within = PLACES.get(name, ("", name))
        if part in parts:
            parts[part][within] = value
        else:
            own[name] = value
    values = {part: VALUES[part](**given) for part, given in parts.items() if given}
    return rq.train(model, clients, **own, **values)

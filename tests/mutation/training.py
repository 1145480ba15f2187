"""Faults of runs and engines: keys and cohorts that repeat, an account that forgets."""

# fmt: off
FAULTS = {
    "integrations/accountant.py": [
        ('state["checksum"] != _checksum(told)',
         "False",
         "a changed count is believed"),
        ("any(o.mechanism.trust == 'aggregate' for o in offers)",
         "all(o.mechanism.trust == 'aggregate' for o in offers)",
         "codes that were seen count as a sum's trust"),
    ],
    "integrations/flower/ledger.py": [
        ('self._context.state[SPENT] = ConfigRecord({"account": self._to_bytes()})',
         "pass",
         "without a file nothing is counted"),
    ],
    "integrations/flower/mod.py": [
        ("ledger.accountant.compose(RoundEvent(own.offer, frozenset({OWN})))",
         "None",
         "answers are not counted"),
        ("accountant.would_exceed(event, most, alone=alone)",
         "False",
         "no limit"),
    ],
    "integrations/flower/sums.py": [
        ("len(survivors) < self._terms.least",
         "False",
         "a sum of too few is asked for"),
    ],
    "integrations/ledger.py": [
        ("name in self._taken",
         "False",
         "a step can be taken twice"),
        ('not set(state["clients"]) <= {str(OWN)}',
         "False",
         "an account of several clients is believed"),
        ("data[:START] != MAGIC + hashlib.sha256(body).digest()",
         "data[:8] != MAGIC",
         "no checksum"),
        ("locks.exclusive(self._path.with_name(self._path.name + '.lock'), wait=PATIENCE)",
         "__import__('contextlib').nullcontext()",
         "two processes count one answer"),
    ],
    "integrations/nvflare/filter.py": [
        ("ledger.save()",
         "None",
         "what is sent is not counted"),
    ],
    "integrations/nvflare/request.py": [
        ("('nvflare', coding.fingerprint.hex(), session.hex(), site)",
         "('nvflare', coding.fingerprint.hex(), session.hex())",
         "one site's codes pass for another's"),
    ],
    "training/algorithm.py": [
        ("len(set(cohort)) < len(cohort)",
         "False",
         "a client twice in a cohort"),
        ("collect(cohort, key.fold_in(number), seed, state.squares, state.threshold)",
         "collect(cohort, key, seed, state.squares, state.threshold)",
         "rounds share keys"),
    ],
    "training/cohort.py": [
        ('keys = [key.fold_in("client", client) for client in clients]',
         'keys = [key.fold_in("client", i) for i, _ in enumerate(clients)]',
         "clients of different groups share keys"),
        ("key.fold_in('server')",
         "key",
         "the server's noise is that of a round's other draws"),
        ('key.fold_in("clients", *clients).words(2)',
         'key.fold_in("clients").words(2)',
         "all clients share a seed"),
    ],
    "training/participation.py": [
        ("key.fold_in('poisson cohort', round)",
         "key.fold_in('poisson cohort')",
         "every round the same clients"),
    ],
}

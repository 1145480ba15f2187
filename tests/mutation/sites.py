"""Faults planted in NVFlare's parts: file, before, after, what it breaks, tests.

`before` occurs exactly once in its file. EQUIVALENT are those that change nothing that can be seen.
"""

N = "integrations/nvflare"
ALL = ("tests/integrations/test_nvflare.py",)

MUTANTS = [
    # request.py
    (
        f"{N}/request.py",
        "self.mechanism.in_round(0).coding is None",
        "self.mechanism.coding is None",
        "a mechanism whose coding is known with the round's seed is refused",
        ALL,
    ),
    (
        f"{N}/request.py",
        ' or self.mechanism.trust != "local"',
        "",
        "codes that need a secure sum are sent one by one",
        ALL,
    ),
    (
        f"{N}/request.py",
        "session.hex(), site)",
        "session.hex())",
        "one site's codes pass for another's",
        ALL,
    ),
    (
        f"{N}/request.py",
        "session.hex(), site)",
        "site)",
        "codes of one round pass for another's",
        ALL,
    ),
    (
        f"{N}/request.py",
        "release if self.examples is None else release.of_one_example(self.examples)",
        "release",
        "the account of one patient is that of a site",
        ALL,
    ),
    (
        f"{N}/request.py",
        "    except ValueError:  # its headers are something else\n        return None\n",
        "    except KeyError:\n        return None\n",
        "headers that are none raise an error of NVFlare's",
        ALL,
    ),
    # filter.py
    (
        f"{N}/filter.py",
        "checked(functools.partial(self._check, request)):\n",
        "checked(lambda accountant: None):\n",
        "a site trains beyond its limit",
        ALL,
    ),
    (
        f"{N}/filter.py",
        "        check = functools.partial(self._check, request)\n",
        "        check = lambda accountant: None\n",
        "a site answers beyond its limit after another process has",
        ALL,
    ),
    (
        f"{N}/filter.py",
        "            ledger.save()\n",
        "",
        "what is sent is not counted",
        ALL,
    ),
    (
        f"{N}/filter.py",
        'if not ledger.first(session, "upload"):',
        'if ledger.first(session, "upload") is None:',
        "a request is answered twice",
        ALL,
    ),
    (
        f"{N}/filter.py",
        "            return make_reply(next((own for own in FAILURES if own == code), FAILED))\n",
        "            return shareable\n",
        "what failed training left behind is sent",
        ALL,
    ),
    (
        f"{N}/filter.py",
        "replace(Request.from_text(text), examples=self.examples)",
        "Request.from_text(text)",
        "the server says how many patients a site has",
        ALL,
    ),
    (
        f"{N}/filter.py",
        "if len(session) != SESSION_BYTES:",
        "if len(session) == 0:",
        "a session of any length",
        ALL,
    ),
    (
        f"{N}/filter.py",
        "        if self.examples is not None:  # a difference",
        "        if self.examples is None:  # a difference",
        "a model is sent as an update of one patient",
        ALL,
    ),
    # controller.py
    (
        f"{N}/controller.py",
        "        self._save()  # once asked, a site may send whatever happens here\n",
        "",
        "sites are asked before the account is on the disk",
        ALL,
    ),
    (
        f"{N}/controller.py",
        "        if site in self._payloads:\n",
        "        if False:\n",
        "a second answer takes the place of the first",
        ALL,
    ),
    (
        f"{N}/controller.py",
        "            text = logged(error if isinstance(error, ValueError) else UNREADABLE)\n",
        "            text = str(error)\n",
        "an answer writes lines of its own into the log",
        ALL,
    ),
    (
        f"{N}/controller.py",
        "            stack.enter_context(locks.folder(self._path.parent))\n",
        "",
        "two servers write one state",
        ALL,
    ),
    (
        f"{N}/controller.py",
        "or _kinds(model) != _kinds(self._model)",
        "",
        "a model of other numbers is continued",
        ALL,
    ),
    (
        f"{N}/controller.py",
        'record["request"] != self._request.to_text() or ',
        "",
        "a run of another mechanism is continued",
        ALL,
    ),
    (
        f"{N}/controller.py",
        '            self._accountant.load_state_dict(record["accountant"])\n',
        "",
        "what was sent before a restart is forgotten",
        ALL,
    ),
    (
        f"{N}/controller.py",
        "        if len(self._payloads) < self.min_clients:\n",
        "        if not self._payloads:\n",
        "a mean of fewer sites than were asked for",
        ALL,
    ),
    # state.py, of every engine
    (
        "integrations/state.py",
        "        if not DTYPE.fullmatch(array.dtype.str):\n",
        "        if False:\n",
        "a state is written that nobody can read",
        ALL,
    ),
    (
        "integrations/state.py",
        "    if data[:HEAD] != MAGIC + hashlib.sha256(body).digest():\n",
        "    if data[: len(MAGIC)] != MAGIC:\n",
        "a state that was changed is believed",
        ALL,
    ),
]

EQUIVALENT: list[tuple[str, str, str, str]] = []

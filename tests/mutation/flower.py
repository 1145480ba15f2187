"""Faults planted in Flower's parts and in what mechanisms check: file, before, after, why, tests.

`before` occurs exactly once in its file. EQUIVALENT are those that change nothing that can be seen.
"""

N, F, A = "integrations", "integrations/flower", "aggregation"


def of(name: str, *tests: str) -> tuple[str, ...]:
    """Tests of one file, which is given as `room/test_module`, by their names."""
    return tuple(f"tests/{name}.py::test_{test}" for test in tests)


MUTANTS = [
    # ledger.py
    (
        f"{N}/ledger.py",
        "        if name in self._taken:\n",
        "        if False:\n",
        "a step can be taken twice",
        of("integrations/test_flower_ledger", "adverts_are_free_and_make_nobody_forget"),
    ),
    (
        f"{N}/ledger.py",
        "repr((session, step))",
        "repr(session)",
        "one step of a sum uses up all",
        of("integrations/test_flower_ledger", "a_step_costs_sixteen_bytes_and_is_kept_for_ever"),
    ),
    (
        f"{N}/ledger.py",
        "repr((session, step))",
        "repr(step)",
        "a step of one sum uses up that of all",
        of("integrations/test_flower_ledger", "a_step_costs_sixteen_bytes_and_is_kept_for_ever"),
    ),
    (
        f"{N}/ledger.py",
        "        self._written += 1\n",
        "",
        "an older account is not noticed",
        of("integrations/test_flower_ledger", "an_account_older_than_this_run_has_seen_is_refused"),
    ),
    (
        f"{N}/ledger.py",
        "if self._written < seen:",
        "if self._written > seen:",
        "an account that others have written since is refused",
        of("integrations/test_flower_ledger", "a_client_with_another_number_has_the_same_account"),
    ),
    (
        f"{N}/ledger.py",
        "        write_atomic(self._path, self._to_bytes(), private=True)\n",
        "        self._path.write_bytes(self._to_bytes())\n",
        "a kill leaves half an account",
        of(
            "integrations/test_flower_ledger",
            "file_and_name_are_on_the_disk_before_anything_is_sent",
        ),
    ),
    (
        f"{N}/ledger.py",
        '            if not set(state["clients"]) <= {str(OWN)}:\n',
        "            if False:\n",
        "an account of several clients is believed",
        of("integrations/test_flower_ledger", "an_account_of_something_else_is_refused"),
    ),
    (
        f"{N}/ledger.py",
        "            if data[:START] != MAGIC + hashlib.sha256(body).digest():\n",
        "            if data[:8] != MAGIC:\n",
        "no checksum",
        of("integrations/test_flower_ledger", "no_changed_byte_or_digit_is_believed"),
    ),
    (
        f"{N}/ledger.py",
        "            if len(body) != end + STEP_BYTES * len(taken):\n",
        "            if False:\n",
        "half a step, or one twice, is believed",
        of("integrations/test_flower_ledger", "a_step_that_is_deleted_doubled_or_moved_is_noticed"),
    ),
    (
        f"{N}/ledger.py",
        "*self._taken])",
        "*list(self._taken)[-50:]])",
        "steps are forgotten after a hundred sums",
        of("integrations/test_flower_ledger", "a_step_costs_sixteen_bytes_and_is_kept_for_ever"),
    ),
    (
        f"{N}/ledger.py",
        (
            '        with locks.exclusive(self._path.with_name(self._path.name + ".lock"), '
            "wait=PATIENCE):\n"
        ),
        "        with contextlib.nullcontext():\n",
        "two processes count one answer",
        of("integrations/test_flower_messages", "an_account_is_held_by_one_process_at_a_time"),
    ),
    (
        f"{N}/ledger.py",
        "                self._accountant.load_state_dict(state)\n",
        "                pass\n",
        "what was answered before is forgotten",
        of("integrations/test_flower_ledger", "what_is_not_saved_is_not_counted"),
    ),
    (
        f"{F}/ledger.py",
        '            self._context.state[SPENT] = ConfigRecord({"written": self._written})\n',
        "            pass\n",
        "a run does not know how new its account is",
        of("integrations/test_flower_ledger", "an_account_older_than_this_run_has_seen_is_refused"),
    ),
    (
        f"{N}/ledger.py",
        "self._load(read_own(self._path) if os.path.lexists(self._path) else None)",
        "self._load(None)",
        "the file is not read",
        of("integrations/test_flower_ledger", "what_is_not_saved_is_not_counted"),
    ),
    (
        f"{F}/ledger.py",
        '            self._context.state[SPENT] = ConfigRecord({"account": self._to_bytes()})\n',
        "            pass\n",
        "without a file nothing is counted",
        of("integrations/test_flower_ledger", "a_client_with_another_number_has_the_same_account"),
    ),
    # files.py, state.py
    (
        "_internal/disk.py",
        "        flush(opened)\n",
        "        pass\n",
        "a power cut brings the old account back",
        of(
            "integrations/test_flower_ledger",
            "file_and_name_are_on_the_disk_before_anything_is_sent",
        ),
    ),
    (
        f"{N}/state.py",
        "    write_atomic(path,",
        "    Path.write_bytes(path,",
        "a kill leaves half a state",
        of(
            "integrations/test_flower_ledger",
            "file_and_name_are_on_the_disk_before_anything_is_sent",
        ),
    ),
    # arrays.py
    (
        f"{F}/arrays.py",
        "    if array.stype != STYPE:\n",
        "    if False:\n",
        "arrays of another kind are read",
        of("integrations/test_flower_hostile", "an_array_is_what_the_message_says_of_it"),
    ),
    (
        f"{F}/arrays.py",
        "    if (str(dtype), shape) != (array.dtype, tuple(array.shape)):\n",
        "    if False:\n",
        "an app and the mod read different arrays",
        of("integrations/test_flower_hostile", "an_array_is_what_the_message_says_of_it"),
    ),
    (
        f"{F}/arrays.py",
        "!= math.prod(shape) * dtype.itemsize",
        "< math.prod(shape) * dtype.itemsize",
        "what comes behind an array is passed on",
        of("integrations/test_flower_hostile", "an_array_is_what_the_message_says_of_it"),
    ),
    (
        f"{F}/arrays.py",
        "    if dtype is None or dtype.char not in DTYPES:\n",
        "    if dtype is None:\n",
        "floats that differ from machine to machine are read",
        of("integrations/test_flower_hostile", "arrays_of_anything_but_numbers_are_refused"),
    ),
    (
        f"{F}/arrays.py",
        '"F" if header[2] == b"True" else "C"',
        '"C"',
        "columns are read as rows",
        of("integrations/test_flower_hostile", "every_array_of_numbers_is_read_as_numpy_reads_it"),
    ),
    (
        f"{F}/arrays.py",
        'b"\\1\\0": 2, ',
        'b"\\1\\0": 2, b"\\1\\7": 2, ',
        "files that NumPy refuses reach the train function",
        of("integrations/test_flower_hostile", "arrays_that_are_none_are_refused"),
    ),
    (
        f"{F}/arrays.py",
        "if start <= LONGEST_HEADER else None",
        "",
        "headers that NumPy refuses reach the train function",
        of("integrations/test_flower_messages", "no_header_is_longer_than_numpy_reads"),
    ),
    # mod.py
    (
        f"{F}/answers.py",
        "    return REFUSED, error\n",
        "    return str(error), error\n",
        "raw errors, and texts of NumPy's",
        of(
            "integrations/test_flower_hostile",
            "whatever_goes_wrong_before_the_charge_is_one_sentence",
        ),
    ),
    (
        f"{F}/answers.py",
        "        return FILES, error\n",
        "        return str(error), error\n",
        "a server is told the names of files",
        of(
            "integrations/test_flower_limit",
            "an_account_that_cannot_be_used_is_refused_and_named_to_nobody",
        ),
    ),
    (
        f"{F}/mod.py",
        "            return refusal(message, NOTHING, error)\n",
        "            return refusal(message, str(error), error)\n",
        "a server is told what went wrong in training",
        of("integrations/test_flower_mod", "what_goes_wrong_in_training_stays_with_the_client"),
    ),
    (
        f"{F}/mod.py",
        "        if not layout.finite(model):\n",
        "        if False:\n",
        "a client is charged for a model of NaN",
        of(
            "integrations/test_flower_hostile",
            "a_model_that_is_not_finite_is_refused_before_it_is_charged",
        ),
    ),
    (
        f"{F}/mod.py",
        "        if layout.parts != own:\n",
        "        if False:\n",
        "a client trains other parts than its own",
        of(
            "integrations/test_flower_buffers", "a_client_refuses_to_train_other_parts_than_its_own"
        ),
    ),
    (
        f"{F}/mod.py",
        "        if offer.buffers != (self.buffers or offer.buffers):\n",
        "        if False:\n",
        "a client's own word about running statistics does not count",
        ("tests/integrations/test_flower_buffers.py",),
    ),
    (
        f"{F}/mod.py",
        '            if offer.buffers == "frozen":\n',
        "            if False:\n",
        "statistics that are said to be frozen are not",
        of("integrations/test_flower_buffers", "frozen_statistics_are_what_clients_check"),
    ),
    (
        f"{F}/mod.py",
        '        if layout.running and offer.buffers == "refuse":\n',
        "        if False:\n",
        "a client does not look for running statistics itself",
        of("integrations/test_flower_buffers", "a_client_looks_for_running_statistics_itself"),
    ),
    (
        f"{F}/mod.py",
        "        if layout.dimension != offer.of_model:\n",
        "        if False:\n",
        "a model of another dimension is trained",
        of("integrations/test_flower_mod", "a_request_of_another_model_is_refused"),
    ),
    (
        f"{F}/mod.py",
        "            ledger.accountant.compose(RoundEvent(own.offer, frozenset({OWN})))\n"
        "            ledger.save()\n",
        "            ledger.save()\n",
        "answers are not counted",
        of(
            "integrations/test_flower_limit",
            "a_client_refuses_what_is_beyond_its_limit_and_counts_what_it_has_answered",
        ),
    ),
    (
        f"{F}/mod.py",
        "            if not head.offer:\n                ledger.take(head.session, head.step)\n"
        "            ledger.accountant",
        "            ledger.accountant",
        "an upload may be repeated with an old state",
        of("integrations/test_flower_limit", "steps_are_remembered_where_a_state_is_lost"),
    ),
    (
        f"{F}/mod.py",
        "            ledger.save()\n        own.forget",
        "        own.forget",
        "a step is not remembered",
        of("integrations/test_flower_ledger", "a_share_is_remembered_too"),
    ),
    (
        f"{F}/mod.py",
        "        own.forget(context)  # after a failed step the client has left the sum\n",
        "",
        "a part in a sum outlives it",
        of("integrations/test_flower_sums", "a_sum_is_forgotten_when_it_is_over"),
    ),
    (
        f"{F}/mod.py",
        "                ledger.take(Head.read(following).session, messages.SHARE)\n",
        "                pass\n",
        "shares of the next sum may be dealt again with an old state",
        of(
            "integrations/test_flower_ahead",
            "a_step_of_two_sums_is_answered_once_whatever_old_state_comes_back",
        ),
    ),
    (
        f"{F}/mod.py",
        "            if head.step != step or head.session == current:\n",
        "            if head.step != step:\n",
        "the next sum takes the place of the one that runs",
        of(
            "integrations/test_flower_ahead",
            "terms_of_the_next_sum_are_refused_as_those_of_any",
        ),
    ),
    (
        f"{F}/mod.py",
        "            Membership.forget_all(context)  # it is in this sum, and in the next one at most\n",
        "            own.forget(context)\n",
        "what a client keeps grows with the invitations",
        of("integrations/test_flower_ahead", "what_a_client_keeps_is_of_two_sums_at_most"),
    ),
    (
        f"{F}/mod.py",
        "            Membership.forget_all(context)  # it is in this sum, and in the next one at most\n",
        "            if not head.offer:\n                Membership.forget_all(context)\n",
        "what a client keeps grows with invitations beside updates of local trust",
        of(
            "integrations/test_flower_ahead",
            "invitations_beside_updates_of_local_trust_do_not_add_up",
        ),
    ),
    (
        f"{F}/mod.py",
        "        if following is not None and head.step != messages.CONFIRM:\n",
        "        if False:\n",
        "a step of the next sum beside any message",
        of(
            "integrations/test_flower_ahead",
            "the_next_sums_step_travels_with_no_other_message",
        ),
    ),
    (
        f"{F}/ahead.py",
        "        self.last, self.prepared = last, None\n",
        "        self.last = last\n",
        "a run goes on with a handshake of the one before",
        of("integrations/test_flower_ahead", "a_second_start_begins_with_its_own_handshake"),
    ),
    (
        f"{F}/mod.py",
        "            if account is not None:\n",
        "            if False:\n",
        "a train function can wipe the account",
        of(
            "integrations/test_flower_limit", "an_account_that_a_train_function_throws_away_is_kept"
        ),
    ),
    (
        f"{F}/mod.py",
        (
            "        rest = {key: r for key, r in message.content.items() if key not in "
            "messages.OURS}\n"
        ),
        "        rest = dict(message.content)\n",
        "our records reach the train function",
        of("integrations/test_flower_strategy", "the_step_is_the_exact_mean_of_the_updates"),
    ),
    (
        f"{F}/mod.py",
        '        if terms is None and mechanism.trust != "local":\n',
        "        if False:\n",
        "an offer that counts on a sum is answered without one",
        of(
            "integrations/test_flower_sums",
            "without_secure_aggregation_an_offer_that_counts_on_it_is_refused",
        ),
    ),
    (
        f"{F}/mod.py",
        "            if accountant.would_exceed(event, most, alone=alone):\n",
        "            if False:\n",
        "no limit",
        of(
            "integrations/test_flower_limit",
            "a_client_refuses_what_is_beyond_its_limit_and_counts_what_it_has_answered",
        ),
    ),
    (
        f"{F}/mod.py",
        "                accountant.compose(event)\n",
        "",
        "a refusal tells the figure before the offer",
        of(
            "integrations/test_flower_limit",
            "a_client_refuses_what_is_beyond_its_limit_and_counts_what_it_has_answered",
        ),
    ),
    (
        f"{F}/demands.py",
        "    if offer.mechanism.cohort > counted:\n",
        "    if offer.mechanism.cohort > len(terms.clients):\n",
        "noise of clients that may be missing is counted on",
        of("integrations/test_flower_sums", "a_changed_offer_is_refused"),
    ),
    (
        f"{F}/demands.py",
        "    if terms.bits < offer.bits(len(terms.clients)):\n",
        "    if False:\n",
        "a sum that wraps around",
        of("integrations/test_flower_sums", "a_changed_offer_is_refused"),
    ),
    (
        f"{F}/demands.py",
        "terms.least - colluders",
        "terms.least",
        "noise of colluders is counted on",
        of("integrations/test_flower_sums", "a_client_refuses_sums_that_it_does_not_trust"),
    ),
    (
        f"{F}/mod.py",
        "limits.append((limit, True,",
        "limits.append((limit, False,",
        "the limit of a client's codes alone looks at the figure that counts on others",
        of(
            "integrations/test_flower_invented",
            "a_limit_of_what_is_left_alone_ends_it_before_anything_is_charged",
        ),
    ),
    (
        "privacy/accounting/release.py",
        '    return 1 if trust == "local" else cohort',
        "    return cohort",
        "codes that are seen alone have no figure",
        of(
            "privacy/test_releases",
            "nobody_counts_on_others_whose_codes_are_seen_one_by_one",
        ),
    ),
    (
        f"{F}/mod.py",
        '    return "infinity" if math.isinf(value) else round_up(value)',
        '    return "infinity" if math.isinf(value) else f"{value:.6g}"',
        "a figure that is below what was proven",
        of("integrations/test_flower_ledger", "a_refusal_beyond_the_limit_rounds_up_what_it_says"),
    ),
    (
        f"{F}/answers.py",
        'told = "" if why is None else logged(f" {why!r}")',
        'told = "" if why is None else f" {why!r}"',
        "a log of megabytes",
        of("integrations/test_flower_messages", "what_is_logged_of_a_long_error_is_short"),
    ),
    (
        f"{F}/mod.py",
        '        delta = float(config.get("randquant-delta", self.delta))\n',
        "        delta = self.delta\n",
        "a node's delta is ignored",
        of(
            "integrations/test_flower_messages",
            "a_node_with_a_smaller_delta_reaches_its_limit_alone",
        ),
    ),
    # accountant.py
    (
        f"{N}/accountant.py",
        '            if state["checksum"] != _checksum(told):\n',
        "            if False:\n",
        "a changed count is believed",
        of(
            "integrations/test_flower_ledger",
            "no_changed_digit_or_byte_of_an_accountants_state_is_believed",
        ),
    ),
    (
        f"{N}/accountant.py",
        "                worst |= spent",
        "                worst = spent",
        "a newcomer inherits of one client only",
        of("integrations/test_flower_account", "a_newcomer_inherits_the_most_of_each_offer"),
    ),
    (
        f"{N}/accountant.py",
        "        spent[offers[place]] += validate",
        "        spent[offers[place]] = validate",
        "of former offers that are equal one count is lost",
        of(
            "integrations/test_flower_buffers",
            "an_account_of_the_former_version_keeps_everything_that_it_counts",
        ),
    ),
    (
        f"{N}/accountant.py",
        '            if len(set(state["offers"])) < len(state["offers"]):\n',
        "            if False:\n",
        "of an offer that comes twice one count is lost",
        of("integrations/test_flower_limit", "an_account_that_could_lose_a_count_is_refused"),
    ),
    (
        f"{N}/accountant.py",
        "        return not self._worst(after, self.delta, alone) <= limit",
        "        return self._worst(after, self.delta, alone) > 1.01 * limit",
        "a limit may be exceeded by a little",
        of("integrations/test_flower_ledger", "a_limit_is_not_exceeded_by_anything"),
    ),
    (
        f"{N}/accountant.py",
        "            self._spent.get(client, Counter()) + Counter({event.offer: count})\n",
        "            Counter({event.offer: count})\n",
        "answers before do not count",
        of(
            "integrations/test_flower_limit",
            "a_client_refuses_what_is_beyond_its_limit_and_counts_what_it_has_answered",
        ),
    ),
    (
        f"{N}/accountant.py",
        '"aggregate" if any(o.mechanism',
        '"aggregate" if all(o.mechanism',
        "codes that were seen count as a sum's trust",
        of("integrations/test_flower_account", "trust_is_that_of_all_clients"),
    ),
    (
        f"{N}/accountant.py",
        "        return max(epsilons, default=0.0)",
        "        return min(epsilons, default=0.0)",
        "the guarantee is that of the best off",
        of("integrations/test_flower_account", "the_accountant_composes_what_clients_answered"),
    ),
    (
        f"{N}/accountant.py",
        "        if not self.stable:\n",
        "        if self.stable:\n",
        "newcomers begin at zero",
        of("integrations/test_flower_account", "a_newcomer_inherits_the_most_of_each_offer"),
    ),
    # updates.py
    (
        f"{F}/updates.py",
        '        if arrays.read(array).dtype.kind == "f" and not is_running(name)\n',
        '        if arrays.read(array).dtype.kind == "f"\n',
        "running statistics are noised",
        of("integrations/test_flower_buffers", "running_statistics_are_left_as_they_were"),
    ),
    (
        f"{F}/updates.py",
        "        and not patterns.matches(name, unwanted)\n",
        "",
        "what is frozen is trained",
        of(
            "integrations/test_flower_buffers",
            "only_the_parts_that_were_chosen_are_trained_encoded_and_counted",
        ),
    ),
    (
        "_internal/patterns.py",
        "        if not any(matches(name, (pattern,)) for name in names):\n",
        "        if False:\n",
        "a pattern that is misspelt leaves out nothing",
        of(
            "integrations/test_flower_buffers",
            "a_pattern_that_matches_nothing_is_refused_at_the_start",
        ),
    ),
    (
        f"{F}/updates.py",
        "        for name in self.kept:\n",
        "        for name in ():\n",
        "a strategy moves what is not trained",
        of(
            "integrations/test_flower_buffers",
            "what_a_strategy_moves_although_it_is_not_trained_is_put_back",
        ),
    ),
    (
        "aggregation/layout.py",
        '("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")',
        '("running_mean",)',
        "variances are noised",
        of("integrations/test_flower_buffers", "the_dimension_is_that_of_the_parameters"),
    ),
    (
        f"{F}/updates.py",
        '            if trained is None or trained.shape != shape or trained.dtype.kind != "f":\n',
        "            if trained is None:\n",
        "an update of another shape",
        of(
            "integrations/test_flower_mod",
            "an_update_that_cannot_be_sent_is_not_and_the_server_does_not_learn_why",
        ),
    ),
    (
        f"{F}/updates.py",
        "            if not np.isfinite(value).all():\n",
        "            if False:\n",
        "a step that diverges is taken",
        of("integrations/test_flower_replies", "a_step_that_diverges_is_not_taken"),
    ),
    # offer.py, messages.py, sums.py
    (
        f"{F}/offer.py",
        '"buffers": self.buffers}',
        '"buffers": []}',
        "buffers do not travel",
        of("integrations/test_flower_buffers", "offers_differ_with_their_parts"),
    ),
    (
        f"{F}/offer.py",
        "        if len(set(self.parts)) < len(self.parts):\n",
        "        if False:\n",
        "a part twice",
        of("integrations/test_flower_buffers", "offers_differ_with_their_parts"),
    ),
    (
        f"{F}/offer.py",
        "self.mechanism.sum_bits(self.dimension, clients)",
        "self.mechanism.sum_bits(self.dimension, clients) - 1",
        "sums that wrap around",
        of("integrations/test_flower_strategy", "an_offer_travels_whole"),
    ),
    (
        f"{F}/offer.py",
        "    if version != FORMAT and not (former and version in FORMER):\n",
        '    if version == "":\n',
        "offers of another version",
        of("integrations/test_flower_sums", "a_changed_offer_is_refused"),
    ),
    (
        f"{F}/messages.py",
        "        if max(len(offer), len(terms)) > LONGEST_TEXT:\n",
        "        if False:\n",
        "texts of any length are parsed",
        of("integrations/test_flower_hostile", "texts_and_sessions_are_as_long_as_they_may_be"),
    ),
    (
        f"{F}/messages.py",
        "len(session) > LONGEST_SESSION or step",
        "step",
        "sessions of any length",
        of("integrations/test_flower_hostile", "heads_that_are_none_are_refused"),
    ),
    (
        f"{F}/messages.py",
        "    if array is None or array.stype != STYPE:\n",
        "    if array is None:\n",
        "arrays of numbers are taken for codes",
        of("integrations/test_flower_messages", "a_payload_is_one_array_of_our_type"),
    ),
    (
        f"{F}/replies.py",
        (
            "        except Exception as error:  # any malformed reply: the round continues with the "
            "others\n"
        ),
        "        except ValueError as error:\n",
        "one client's reply stops the round",
        of("integrations/test_flower_hostile", "any_error_of_a_reply_drops_that_reply_alone"),
    ),
    (
        f"{F}/replies.py",
        "            text = logged(error if isinstance(error, ValueError) else UNREADABLE)\n",
        "            text = str(error)\n",
        "a log of megabytes, from a client",
        of("integrations/test_flower_hostile", "any_error_of_a_reply_drops_that_reply_alone"),
    ),
    (
        f"{F}/strategy.py",
        "        layout.check_running(self.buffers)\n",
        "",
        "a batch norm is not refused",
        of(
            "integrations/test_flower_buffers",
            "a_model_with_a_batch_norm_is_refused_with_the_way_out",
        ),
    ),
    # aggregate
    (
        f"{A}/payloads.py",
        "    if clients < cohort:\n",
        "    if clients + 1 < cohort:\n",
        "a mean of fewer than are counted on",
        of("aggregation/test_payloads", "one_payload_forty_times_is_no_cohort_of_forty"),
    ),
    (
        f"{A}/payloads.py",
        "    enough(len(payloads), cohort)\n    copies",
        "    copies",
        "a mean of fewer than are counted on",
        of(
            "aggregation/test_payloads",
            "fewer_payloads_than_counted_on_are_refused_before_they_are_added_up",
        ),
    ),
    (
        f"{A}/payloads.py",
        "    if copies and",
        "    if False and",
        "one payload forty times",
        of("aggregation/test_payloads", "one_payload_forty_times_is_no_cohort_of_forty"),
    ),
    (
        f"{A}/payloads.py",
        "math.log(math.comb(len(payloads), 2))",
        "0.0",
        "pairs do not count",
        of(
            "aggregation/test_payloads",
            "copies_are_refused_where_chance_makes_one_in_a_trillion_sums_have_them",
        ),
    ),
    (
        f"{A}/payloads.py",
        "< BY_CHANCE:\n",
        "< 0:\n",
        "honest short payloads are refused",
        of("aggregation/test_payloads", "payloads_that_may_be_equal_by_chance_are_added_up"),
    ),
    (
        f"{A}/coordinate.py",
        "np.square(channel.probabilities).sum(axis=1).max()",
        "np.square(channel.probabilities).sum(axis=1).min()",
        "equal codes are taken for less likely than they are",
        of("aggregation/test_payloads", "no_two_inputs_draw_equal_codes_more_often_than_is_said"),
    ),
    (
        f"{A}/coordinate.py",
        "np.square(channel.probabilities).sum(axis=1).max()",
        "channel.probabilities.max(axis=1).max()",
        "copies are added up for longer",
        of("aggregation/test_payloads", "no_two_inputs_draw_equal_codes_more_often_than_is_said"),
    ),
    (
        f"{A}/coordinate.py",
        "        return dimension * log_equal_codes(self.channel)\n",
        "        return 0.0\n",
        "one payload forty times",
        of("aggregation/test_payloads", "one_payload_forty_times_is_no_cohort_of_forty"),
    ),
    (
        f"{A}/defaults.py",
        "return self.encode_vector(as_vector(update), key)",
        "return self.encode_vector(update, key)",
        "tensors fail for no true reason",
        of(
            "aggregation/test_payloads", "the_same_numbers_are_encoded_the_same_whatever_holds_them"
        ),
    ),
    (
        f"{A}/additive.py",
        "        return self.size(dimension) * self._log_equal(self.plan(dimension))\n",
        "        return 0.0\n",
        "one payload forty times",
        of("aggregation/test_payloads", "one_payload_forty_times_is_no_cohort_of_forty"),
    ),
    (
        "channels/encoding/inputs.py",
        "    if array.ndim != 1:\n",
        "    if array.ndim > 2:\n",
        "a matrix is encoded as a vector",
        of("aggregation/test_payloads", "what_is_no_update_is_refused_for_the_true_reason"),
    ),
    (
        "channels/encoding/inputs.py",
        "    return widen(one_vector(array))",
        "    return one_vector(array)",
        "bfloat16 is read as integers",
        of(
            "aggregation/test_payloads", "the_same_numbers_are_encoded_the_same_whatever_holds_them"
        ),
    ),
]

EQUIVALENT = []

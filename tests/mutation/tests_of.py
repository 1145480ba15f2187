"""Which tests are run for a mutant that names none: file of the package -> files in tests/."""

ZERO = "privacy/test_coordinate.py::test_zero_out_is_worst_at_an_inner_vertex_in_either_direction"
WAY = "privacy/test_coordinate.py::test_zero_out_where_the_loss_is_from_vertex_to_zero"
INNER = "privacy/test_coordinate.py::test_replace_one_is_found_between_inner_vertices_in_either_direction"
PAIR = "privacy/test_coordinate.py::test_a_pair_is_certified_in_its_own_direction"
PRINTED = "privacy/test_coordinate.py::test_no_printed_figure_is_rounded_to_nearest"
ROUNDED = "privacy/test_coordinate.py::test_rounded_figures_stay_on_their_side_of_the_number_itself"
STICK = "privacy/test_rule.py::test_hockey_stick_holds_the_exact_value"
THEOREM = "privacy/test_sampled.py::test_the_bound_is_the_theorems_to_nine_digits"
ABSENCE = "privacy/test_sampled.py::test_the_bounds_by_absence_are_the_theorems_to_nine_digits"
ACCOUNT = (
    "privacy/test_accountant.py::test_the_conversion_is_rounded_up_from_the_exact_one",
    "privacy/test_accountant.py::test_different_releases_add_up_and_so_do_their_distances",
    "privacy/test_accountant.py::test_closeness_is_paid_in_both_directions",
    "privacy/test_accountant.py::test_closeness_is_paid_for_out_of_delta",
    "privacy/test_accountant.py::test_releases_for_different_neighbours_do_not_compose",
    "privacy/test_accountant.py::test_wrong_arguments_are_refused",
    "privacy/test_accountant.py::test_renyi_bounds_alone_are_converted_at_their_best_order",
    "privacy/test_accountant.py::test_the_bound_is_the_gaussians_true_epsilon",
    "privacy/test_accountant.py::test_an_infinite_certificate_stays_infinite",
    "privacy/test_accountant.py::test_zero_out_has_no_lower_end_of_other_neighbours",
    "privacy/test_accountant.py::test_every_release_of_a_channel_counts",
    "privacy/test_rule.py::test_only_one_channel_under_local_trust_has_a_lower_end",
    "privacy/test_accountant.py",
    "privacy/test_releases_contract.py",
)
CALIBRATE = (
    "privacy/test_calibration.py::test_arguments_are_checked",
    "privacy/test_calibration.py::test_where_any_noise_is_enough_it_is_the_least_of_the_range",
    "privacy/test_calibration.py::test_what_is_returned_belongs_together",
    "privacy/test_calibration.py::test_the_nearest_epsilon_is_printed_rounded_up",
    "privacy/test_calibration.py::test_a_guarantee_that_changes_when_asked_again_is_not_returned",
    "privacy/test_calibration.py::test_no_target_is_exceeded_by_less_than_the_tolerance",
    "privacy/test_calibration.py::test_more_privacy_than_asked_for_is_said",
    "privacy/test_calibration.py::test_the_dimension_counts_where_inputs_are_rounded_one_by_one",
    "privacy/test_calibration.py::test_an_epsilon_that_rises_again_is_searched_too",
    "privacy/test_calibration.py::test_less_noise_does_not_meet_the_target",
    "privacy/test_calibration.py::test_the_gaussian_is_calibrated_to_what_is_known",
    "privacy/test_calibration.py::test_neighbours_at_zero_need_half_the_noise",
    "privacy/test_calibration.py",
)
COMPOSITION = (
    "privacy/test_composition_allowances.py",
    "privacy/test_envelope.py",
    "privacy/test_composition_parts.py",
    "privacy/test_rule.py::test_one_release_is_exact",
    "privacy/test_rule.py::test_the_grid_moves_the_loss_to_its_side",
    "privacy/test_rule.py::test_the_error_of_the_transform_is_bounded",
    "privacy/test_rule.py::test_without_delta_both_ends_are_those_of_pure_composition",
    "privacy/test_rule.py::test_a_rare_impossible_code_is_paid_for_out_of_delta",
    "privacy/test_rule.py",
)

SUMS = ("privacy/test_certificate.py", "privacy/test_rounding.py", "privacy/test_sums.py")
CURVATURE = (
    "privacy/test_rounding.py",
    "privacy/test_sum_curvature_steep.py",
    "privacy/test_sum_curvature.py",
)
UPDATES = (
    "aggregation/test_payloads.py",
    "channels/test_upload.py",
    "aggregation/test_mechanism.py",
    "aggregation/test_mechanism_contract.py",
)
ENCODED = ("channels/test_codec_thresholds.py", "channels/test_codec.py")
SECURE = (
    "aggregation/test_secagg_primitives.py",
    "aggregation/test_secagg_limits.py",
    "aggregation/test_secagg_attacks.py",
    "aggregation/test_secagg.py",
)

# Quick tests that notice much stand first: the first that fails ends a run, and a few stand for a
# whole file where the rest would take long.
TESTS: dict[str, tuple[str, ...]] = {
    "_internal/rounding.py": (
        "_internal/test_rounding_text.py",
        ROUNDED,
        PRINTED,
        "_internal/test_rounding.py",
    ),
    "privacy/accounting/accountant.py": ACCOUNT,
    "privacy/accounting/amplification.py": (THEOREM, ABSENCE, "privacy/test_sampled.py"),
    "privacy/accounting/calibration.py": CALIBRATE,
    "privacy/certificates/coordinate.py": (
        "privacy/test_guarantee.py",
        ZERO,
        WAY,
        INNER,
        PAIR,
        PRINTED,
        "channels/test_pictures.py",
        "privacy/test_coordinate.py",
    ),
    "privacy/accounting/composition/rule.py": COMPOSITION,
    "privacy/accounting/composition/envelope.py": COMPOSITION,
    "privacy/accounting/composition/fourier.py": COMPOSITION,
    "privacy/accounting/composition/allocation.py": ("privacy/test_allocation.py",),
    "privacy/accounting/allocated.py": ("privacy/test_allocation.py",),
    "privacy/accounting/composition/loss.py": COMPOSITION,
    "privacy/accounting/composition/mixture.py": (
        "privacy/test_mixture.py",
        "privacy/test_sampled.py",
    ),
    "privacy/accounting/composition/normal.py": COMPOSITION,
    "privacy/certificates/curvature.py": ("privacy/test_vector.py",),
    "privacy/divergence.py": (
        PAIR,
        STICK,
        "privacy/test_divergence.py",
        "privacy/test_coordinate.py",
    ),
    "privacy/accounting/dp_events.py": ("privacy/test_dp_events.py",),
    "privacy/accounting/examples.py": ("privacy/test_releases.py",),
    "privacy/certificates/metric.py": ("privacy/test_metric.py",),
    "privacy/accounting/gaussian.py": ("privacy/test_gaussian.py",),
    "privacy/accounting/ledger.py": ("privacy/test_ledger.py", "privacy/test_releases.py"),
    "privacy/guarantee.py": (
        "privacy/test_guarantee.py",
        ROUNDED,
        "privacy/test_coordinate.py",
        "privacy/test_accountant.py",
    ),
    "privacy/accounting/martingale.py": ("privacy/test_martingale.py",),
    "privacy/accounting/ratios.py": ("privacy/test_martingale.py",),
    "privacy/accounting/releases.py": (
        "privacy/test_guarantee.py",
        "privacy/test_releases.py",
        "privacy/test_accountant.py",
        "privacy/test_releases_contract.py",
    ),
    "privacy/accounting/sampled.py": (
        "privacy/test_mixture.py",
        "privacy/test_sampled.py",
        "privacy/test_releases_contract.py",
    ),
    "privacy/certificates/vector.py": (
        "privacy/test_vector_boxes.py",
        "privacy/test_vector.py",
    ),
    "aggregation/additive.py": (*UPDATES, "aggregation/test_additive.py"),
    "aggregation/clipping.py": UPDATES,
    "aggregation/coordinate.py": ("aggregation/test_coordinate.py", *UPDATES),
    "aggregation/defaults.py": UPDATES,
    "aggregation/payloads.py": UPDATES,
    "aggregation/rotation.py": ("aggregation/test_rotation.py", *UPDATES),
    "aggregation/subset.py": ("aggregation/test_subset.py", *UPDATES),
    "aggregation/vector.py": (*UPDATES, "planning/test_limits.py"),
    "aggregation/walsh_hadamard.py": ("aggregation/test_rotation.py", *UPDATES),
    "aggregation/secagg/client.py": SECURE,
    "aggregation/secagg/crypto.py": SECURE,
    "aggregation/secagg/group.py": SECURE,
    "aggregation/secagg/masks.py": SECURE,
    "aggregation/secagg/messages.py": SECURE,
    "aggregation/secagg/server.py": SECURE,
    "aggregation/secagg/sharing.py": SECURE,
    "aggregation/secagg/terms.py": SECURE,
    "aggregation/secagg/unmasking.py": SECURE,
    "channels/encoding/codec.py": ENCODED,
    "channels/encoding/batch.py": ENCODED,
    "channels/encoding/inputs.py": (*ENCODED, "aggregation/test_payloads.py"),
    "channels/encoding/kernel.py": ENCODED,
    "channels/encoding/reference.py": ENCODED,
    "channels/encoding/stream.py": ENCODED,
    "channels/encoding/threads.py": ENCODED,
    "channels/encoding/thresholds.py": ENCODED,
    "channels/keys.py": ("channels/test_keys.py",),
    "channels/wire/block_codes.py": ("channels/test_wire.py",),
    "channels/wire/compression.py": ("channels/test_compression.py",),
    "channels/wire/kernel.py": ("channels/test_wire.py",),
    "channels/wire/payload.py": ("channels/test_wire.py",),
    "channels/wire/upload.py": ("channels/test_upload.py", "channels/test_wire.py"),
    "integrations/flower/ledger.py": (
        "integrations/test_flower_messages.py",
        "integrations/test_flower_ledger.py",
    ),
    "integrations/flower/mod.py": (
        "integrations/test_flower_messages.py",
        "integrations/test_flower_hostile.py",
        "integrations/test_flower_buffers.py",
        "integrations/test_flower_mod.py",
        "integrations/test_flower_limit.py",
        "integrations/test_flower_sums.py",
    ),
    "privacy/certificates/sums/attacks.py": SUMS,
    "privacy/certificates/sums/binomial.py": SUMS,
    "privacy/certificates/sums/blanket.py": SUMS,
    "privacy/certificates/sums/blanket_draws.py": SUMS,
    "privacy/certificates/sums/bounds.py": SUMS,
    "privacy/certificates/sums/certificate.py": SUMS,
    "privacy/certificates/sums/hardest.py": SUMS,
    "privacy/certificates/sums/kernel.py": SUMS,
    "privacy/certificates/sums/law.py": SUMS,
    "privacy/certificates/sums/mixture.py": SUMS,
    "privacy/certificates/sums/pair.py": SUMS,
    "privacy/certificates/sums/rows.py": SUMS,
    "privacy/certificates/sums/bits.py": ("privacy/test_bits.py",),
    "privacy/certificates/sums/chain.py": CURVATURE,
    "privacy/certificates/sums/ends.py": ("privacy/test_bits.py", *CURVATURE),
    "privacy/certificates/sums/chain_kernel.py": CURVATURE,
    "privacy/certificates/sums/kappa_blanket.py": CURVATURE,
    "privacy/certificates/sums/reachable.py": CURVATURE,
    "privacy/certificates/sums/rounding.py": CURVATURE,
    "privacy/certificates/sums/sum_curvature.py": CURVATURE,
    "training/participation.py": ("training/test_participation.py",),
}

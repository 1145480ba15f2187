"""Which tests are run for a mutant that names none: file of the package -> files in tests/."""

ZERO = "test_certify.py::test_zero_out_is_worst_at_an_inner_vertex_in_either_direction"
WAY = "test_certify.py::test_zero_out_where_the_loss_is_from_vertex_to_zero"
INNER = "test_certify.py::test_replace_one_is_found_between_inner_vertices_in_either_direction"
PAIR = "test_certify.py::test_a_pair_is_certified_in_its_own_direction"
PRINTED = "test_certify.py::test_no_printed_figure_is_rounded_to_nearest"
ROUNDED = "test_certify.py::test_rounded_figures_stay_on_their_side_of_the_number_itself"
STICK = "test_composition.py::test_hockey_stick_holds_the_exact_value"
THEOREM = "test_sampling.py::test_the_bound_is_the_theorems_to_nine_digits"
ABSENCE = "test_sampling.py::test_the_bounds_by_absence_are_the_theorems_to_nine_digits"
ACCOUNT = (
    "test_account.py::test_the_conversion_is_rounded_up_from_the_exact_one",
    "test_account.py::test_different_releases_add_up_and_so_do_their_distances",
    "test_account.py::test_closeness_is_paid_in_both_directions",
    "test_account.py::test_closeness_is_paid_for_out_of_delta",
    "test_account.py::test_releases_for_different_neighbours_do_not_compose",
    "test_account.py::test_wrong_arguments_are_refused",
    "test_account.py::test_gaussian_equals_the_conversion_at_its_best_order",
    "test_account.py::test_the_bound_is_above_the_gaussians_true_epsilon",
    "test_account.py::test_an_infinite_certificate_stays_infinite",
    "test_account.py::test_zero_out_has_no_lower_end_of_other_neighbours",
    "test_account.py::test_every_release_of_a_channel_counts",
    "test_composition.py::test_only_one_channel_under_local_trust_has_a_lower_end",
)
CALIBRATE = (
    "test_calibrate.py::test_what_is_returned_belongs_together",
    "test_calibrate.py::test_the_nearest_epsilon_is_printed_rounded_up",
    "test_calibrate.py::test_a_guarantee_that_changes_when_asked_again_is_not_returned",
    "test_calibrate.py::test_no_target_is_exceeded_by_less_than_the_tolerance",
    "test_calibrate.py::test_more_privacy_than_asked_for_is_said",
    "test_calibrate.py::test_the_dimension_counts_where_inputs_are_rounded_one_by_one",
    "test_calibrate.py::test_an_epsilon_that_rises_again_is_searched_too",
    "test_calibrate.py::test_less_noise_does_not_meet_the_target",
    "test_calibrate.py::test_the_gaussian_is_calibrated_to_what_is_known",
    "test_calibrate.py::test_neighbours_at_zero_need_half_the_noise",
)
COMPOSITION = (
    "test_composition_parts.py",
    "test_composition.py::test_one_release_is_exact",
    "test_composition.py::test_the_grid_moves_the_loss_to_its_side",
    "test_composition.py::test_the_error_of_the_transform_is_bounded",
    "test_composition.py::test_without_delta_both_ends_are_those_of_pure_composition",
    "test_composition.py::test_a_rare_impossible_code_is_paid_for_out_of_delta",
)

# Quick tests that notice much stand first: the first that fails ends a run, and a few stand for a
# whole file where the rest would take long.
TESTS: dict[str, tuple[str, ...]] = {
    "account.py": ACCOUNT,
    "amplification.py": (THEOREM, ABSENCE, "test_sampling.py"),
    "calibrate.py": CALIBRATE,
    "certify.py": (ZERO, WAY, INNER, PAIR, PRINTED, "test_certify.py"),
    "composition/__init__.py": COMPOSITION,
    "composition/envelope.py": COMPOSITION,
    "composition/fourier.py": COMPOSITION,
    "composition/loss.py": COMPOSITION,
    "composition/normal.py": COMPOSITION,
    "curvature.py": ("test_vector.py",),
    "divergence.py": (PAIR, STICK, "test_divergence.py", "test_certify.py"),
    "events.py": ("test_events.py",),
    "geometry.py": ("test_geometry.py",),
    "ledger.py": ("test_releases.py",),
    "privacy.py": (ROUNDED, "test_certify.py", "test_account.py"),
    "releases.py": ("test_releases.py",),
    "sampling.py": ("test_sampling.py",),
    "vector.py": ("test_vector.py",),
}

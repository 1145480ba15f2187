"""Tuning of whole-update mechanisms: where the search may not go."""

from randquant.mechanisms.tuning import UpdateSetting
from randquant.planning.tuning.update import tune_update, update_family


def test_a_generous_target_does_not_search_where_channels_cannot_be_made():
    """Near the least noise that 62 bits allow a programme takes seconds, and beyond it fails."""
    setting = UpdateSetting(dimension=22, cohort=20, bits=2, trust="local")
    found = tune_update("optimal", setting, 1000.0, 1e-5, 5, deviation=0.03).calibration
    assert found.noise == update_family("optimal", setting).reach[0]
    assert found.guarantee.epsilon <= 1000
    assert found.calls <= 4

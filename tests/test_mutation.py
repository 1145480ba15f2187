"""Every fault of the lists in tests/mutation applies to the code as it is, exactly once."""

import pytest
from mutation.planting import by_hand, planted


def test_every_fault_applies_exactly_once():
    mutants = list(by_hand())  # raises where an expression is not there exactly once
    assert len({mutant.text for mutant in mutants}) == len(mutants) > 100
    for mutant in mutants:
        compile(mutant.text, mutant.file, "exec")


def test_an_expression_that_is_gone_and_one_that_changes_nothing_are_refused():
    place = "privacy/certificates/coordinate.py"
    with pytest.raises(ValueError, match="found it 0 times"):
        planted(place, "no(such, text)", "1")
    with pytest.raises(ValueError, match="another meaning"):
        planted(place, "channel.mix(0.0)", "channel.mix( 0.0 )")

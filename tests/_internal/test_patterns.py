import pytest

from randquant._internal import matches, name_patterns


def test_several_patterns_choose_names_with_case():
    names = ["body.weight", "head.weight", "Head.bias"]
    wanted = name_patterns("parts", ["head.*", "*.bias"], names)
    assert [name for name in names if matches(name, wanted)] == ["head.weight", "Head.bias"]
    assert name_patterns("parts", None, names) == ()


@pytest.mark.parametrize("patterns", [3, [3], ["head.*", None], [b"head.*"]])
def test_what_is_no_text_is_refused(patterns):
    with pytest.raises(TypeError, match="Expected frozen as patterns of names, got"):
        name_patterns("frozen", patterns, ["head.weight"])


def test_a_pattern_that_matches_nothing_is_named():
    with pytest.raises(ValueError, match=r"got 'tail', which matches none of a, b"):
        name_patterns("parts", ["a", "tail"], ["a", "b"])

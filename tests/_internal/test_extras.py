"""A package that is missing is named in one sentence, with the command that installs it."""

from __future__ import annotations

import builtins

import pytest

from randquant._internal import imports


@pytest.fixture
def missing(monkeypatch):
    """Call with names of packages: from now on importing them fails as if not installed."""
    gone, real = set(), builtins.__import__

    def fake(name, *arguments, **options):
        if name.partition(".")[0] in gone:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", fake)
    return gone.update


@pytest.mark.parametrize(
    ("package", "shown"),
    [("torch", "torch"), ("sklearn", "scikit-learn"), ("Crypto", "pycryptodome"),
     ("nacl", "PyNaCl"), ("PIL", "pillow"), ("altair", "altair")],
)  # fmt: skip
def test_the_sentence_names_what_pip_installs(package, shown, missing):
    missing([package])
    with pytest.raises(ImportError) as caught, imports.needed("this test", "one", "two"):
        __import__(f"{package}.inner")
    assert str(caught.value) == (
        f"Expected the package {shown} for this test; it is not installed: "
        "run pip install '.[one,two]' in the folder of randquant's source."
    )
    assert caught.value.__cause__ is not None


def test_a_package_that_does_not_load_is_told_apart_from_one_that_is_missing():
    with pytest.raises(ImportError) as caught, imports.needed("training", "train"):
        raise ImportError("libfoo.so:\n cannot open.", name="torch._C")
    assert str(caught.value) == (
        "Expected the package torch to load for training, but: libfoo.so: cannot open. Install it "
        "again: pip install '.[train]' in the folder of randquant's source."
    )


def test_an_error_of_ours_stays_what_it_is():
    passed_on = pytest.raises(ModuleNotFoundError, match=r"randquant\.nothing")
    with passed_on, imports.needed("x", "y"):
        import randquant.nothing  # type: ignore  # noqa: F401
    with pytest.raises(ZeroDivisionError), imports.needed("x", "y"):
        print(1 / 0)
    with pytest.raises(ImportError) as caught, imports.needed("the outer", "a"):
        imports.load("mouse_pictures", "the inner", "b")
    assert "the inner" in str(caught.value)
    assert "[b]" in str(caught.value)

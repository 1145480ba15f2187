"""Which tests are run for a mutant that names none: file of the package -> files in tests/."""

TESTS: dict[str, tuple[str, ...]] = {
    "account.py": ("test_account.py",),
    "amplification.py": ("test_sampling.py",),
    "calibrate.py": ("test_calibrate.py",),
    "certify.py": ("test_certify.py",),
    "composition/__init__.py": ("test_composition.py",),
    "composition/envelope.py": ("test_composition.py",),
    "composition/fourier.py": ("test_composition.py",),
    "composition/loss.py": ("test_composition.py",),
    "composition/normal.py": ("test_composition.py",),
    "curvature.py": ("test_vector.py",),
    "divergence.py": ("test_divergence.py", "test_certify.py"),
    "events.py": ("test_events.py",),
    "geometry.py": ("test_geometry.py",),
    "ledger.py": ("test_releases.py",),
    "privacy.py": ("test_certify.py", "test_account.py"),
    "releases.py": ("test_releases.py", "test_account.py"),
    "sampling.py": ("test_sampling.py",),
    "vector.py": ("test_vector.py",),
}

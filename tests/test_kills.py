"""What is killed states no less than it has sent: `python tests/kills.py` kills 30 times."""

import random

import kills
import pytest

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


class Forgetful:
    """A planted fault: it reports before it writes; wherever it ends, as it does by itself."""

    def run(self, folder, report):
        for number in range(1, 10):
            report(number)
            (folder / "sent").write_text(f"{number - 2}")

    def check(self, folder, told):
        assert max(told, default=0) <= int((folder / "sent").read_text())


def test_what_is_reported_before_it_is_written_is_caught(tmp_path):
    (tmp_path / "sent").write_text("0")
    with pytest.raises(AssertionError):
        kills.stopped(Forgetful(), tmp_path, 600)


@pytest.mark.slow
@pytest.mark.parametrize("name", kills.MADE)
def test_killed_processes_have_counted_what_they_have_sent(name, tmp_path):
    rng = random.Random(1)
    made = kills.MADE[name]
    longest = 0.8 if name == "rounds with a helper" else 0.3  # its rounds take longer
    kills.kills(made(tmp_path / "whole"), tmp_path / "killed", 4, rng, longest)
    kills.limits(made(tmp_path / "again"), tmp_path / "limited", 3, rng)

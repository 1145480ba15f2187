"""The example app's deployment on real processes, run once."""

import signal
import subprocess
import sys
from pathlib import Path

DEPLOY = Path(__file__).parents[1] / "examples" / "flower_app" / "deploy.py"


def deployment(folder, clients, *options, settings):
    """(what the script printed, its exit status); it ends what it has started."""
    command = [
        sys.executable, str(DEPLOY), "--folder", str(folder), "--clients", str(clients),
        *options, "--set", *settings,
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as script:
        try:
            printed, _ = script.communicate(timeout=600)  # on two loaded cores
        finally:
            script.send_signal(signal.SIGTERM)
            script.wait(30)
    return printed, script.returncode

"""The example app's deployment on real processes, run once, as it is or otherwise."""

import signal
import subprocess
import sys
from pathlib import Path

DEPLOY = Path(__file__).parents[1] / "examples" / "flower_app" / "deploy.py"


def deployment(folder, clients, *options, settings, script=DEPLOY):
    """(what the script printed, its exit status); it ends what it has started."""
    command = [
        sys.executable, str(script), "--folder", str(folder), "--clients", str(clients),
        *options, "--set", *settings,
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            printed, _ = process.communicate(timeout=600)  # on two loaded cores
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    return printed, process.returncode

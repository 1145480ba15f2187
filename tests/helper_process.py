"""The helper's command in a process of its own, and a client in another."""

import contextlib
import json
import os
import signal
import subprocess
import sys

COMMAND = [sys.executable, "-m", "randquant", "helper"]
CLIENT = """
import sys
import numpy as np
from randquant.secure_sums.helper import HelperTerms, proven_message
terms, client, code = HelperTerms.from_text(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
codes = np.full(terms.dimension, code, np.uint8)
sys.stdout.buffer.write(proven_message(terms, client, codes, bytes.fromhex(sys.argv[4])))
"""


@contextlib.contextmanager
def started(folder, own, said=""):
    """A helper whose key is the file `id` in a folder: its process and address; it ends cleanly."""
    serve = [
        *COMMAND, "serve", str(folder / "journal"), "--key", str(folder / "id"),
        "--listen", "localhost:0", "--authority", own.authority,
        "--certificate", own.certificate, "--private-key", own.private_key,
    ]  # fmt: skip
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            line = process.stderr.readline()
            assert "listens on port" in line
            assert said in line
            yield process, f"localhost:{int(line.split()[-1])}"
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def told(*arguments):
    """What one of the command's actions prints, which is JSON."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments), "--json"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def proven_in_a_process(terms, client, code, pinned):
    """The message of a client that proves one code in all places, from its own process."""
    own = [terms.to_text(), str(client), str(code), pinned.hex()]
    return subprocess.run(
        [sys.executable, "-c", CLIENT, *own], capture_output=True, check=True
    ).stdout

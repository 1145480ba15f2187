"""The example app's deployment, of clients without keys: the first has no setting for its account.

The others' operators do without a file, as they say; arguments are those of `deploy.py`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower_app"))

import deploy

FILES = ("randquant-ledger", "randquant-identity", "randquant-directory")


class WithoutLedgers(deploy.Deployment):
    def start(self, name, *command):
        if "--node-config" in command:
            *before, settings = command  # it comes last
            kept = [each for each in settings.split() if not each.startswith(FILES)]
            if name != "client0":
                kept.append('randquant-ledger="none"')
            command = (*before, " ".join(kept))
        return super().start(name, *command)


if __name__ == "__main__":
    deploy.Deployment = WithoutLedgers
    deploy.main()

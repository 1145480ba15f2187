"""`python -m randquant_papers`, the same as `randquant-papers`."""

import sys

from randquant_papers.cli import main

if __name__ == "__main__":  # not in the processes that train runs
    sys.exit(main())

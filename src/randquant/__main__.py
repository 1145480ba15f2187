"""python -m randquant: the command line."""

from randquant.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""python -m randquant: the command line."""

from randquant.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())

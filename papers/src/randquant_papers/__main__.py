"""`python -m randquant_papers`, the same as `randquant-papers`."""

from randquant_papers.cli import main

main()

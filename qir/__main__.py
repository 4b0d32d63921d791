"""`python -m qir` is `qir`."""

from qir.cli import main

main()

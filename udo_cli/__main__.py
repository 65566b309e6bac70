"""`python -m udo_cli` is `udo`."""

from udo_cli.main import main

main()

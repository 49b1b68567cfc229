"""`python -m bayeslaw`, the same as the command `bayeslaw`."""

from bayeslaw.cli import main

main()

"""``python -m disteval.cli`` is ``disteval``."""

from disteval.cli import main

main(prog_name="disteval")

"""``python -m disteval.cli`` runs ``disteval``."""

from disteval.cli import main

main(prog_name="disteval")

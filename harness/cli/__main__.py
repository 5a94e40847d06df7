"""``python -m harness.cli`` is ``disteval``."""

from harness.cli import main

main(prog_name="disteval")

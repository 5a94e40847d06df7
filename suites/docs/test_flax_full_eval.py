"""The example of full evaluation: its wrong ways are wrong, and the others agree."""

import re
import sys
from pathlib import Path

import pytest

from suites.helpers.needs import needs
from suites.helpers.processes import run_plainly

pytestmark = needs("flax")

EXAMPLE = Path(__file__).parents[2] / "examples" / "flax_full_eval.py"
WRONG = {"drops_the_remainder": 32, "counts_the_padding": 48}
RIGHT = ["trims_predictions", "masks_on_devices", "masks_on_a_mesh", "on_three_hosts"]


def test_the_wrong_ways_are_wrong_and_the_right_ways_agree() -> None:
    if not EXAMPLE.exists():
        pytest.skip("the examples are not part of an installed package; run this from a clone")
    done = run_plainly([sys.executable, str(EXAMPLE)], EXAMPLE.parent, 300)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(\w+) +(\d+) of (\d+) right", done.stdout, flags=re.MULTILINE)
    right = {name: (int(correct), int(seen)) for name, correct, seen in found}
    assert set(right) == {*WRONG, *RIGHT}
    assert {name: right[name][1] for name in WRONG} == WRONG
    [(_, samples)] = {right[name] for name in RIGHT}
    assert samples == 35

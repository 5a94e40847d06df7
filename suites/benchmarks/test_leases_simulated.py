"""The simulation of leases loses ranks, and evaluates every unit all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from suites.benchmarks import leases_simulated as simulated
from suites.benchmarks.scaling import HEADING


@pytest.mark.parametrize("name", [*simulated.RULES][:: len(simulated.RULES) - 1])
def test_units_are_evaluated_by_ranks_of_which_some_are_lost(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"UNITS": 100, "SECONDS": 0.2, "TARGET": 0.02, "TIMEOUT": 0.3}
    for constant, value in small.items():
        monkeypatch.setattr(simulated, constant, value)
    plan = simulated.draw(20, seed=1)
    assert np.isfinite(plan.lost_at).sum() == 2
    found = simulated.simulate(name, simulated.RULES[name], plan, tmp_path, seed=1)
    assert found.leases >= 100 / simulated.Fixed.units
    assert found.repeated >= 0
    assert found.seconds > 0.5 * found.ideal


def test_the_page_has_a_row_for_each_rule() -> None:
    plan = simulated.draw(1000, seed=0)
    lines = "\n".join(simulated.page([simulated.static(plan)], 1000, 0.0)).splitlines()
    assert lines[0] == HEADING
    assert sum(line.startswith("| static shares") for line in lines) == 1

"""The fitted cost model reproduces the figures that it was fitted to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.benchmarks.scaling import BYTES, WORLD_SIZES, Model, fit, page


@given(st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-7), st.floats(0, 1e-5))
def test_a_fit_finds_what_the_points_were_made_of(alpha: float, beta: float, gamma: float) -> None:
    model = Model(alpha, beta, gamma)
    points = [(w, size, model.all_gather(w, size)) for w in WORLD_SIZES for size in BYTES]
    found = fit(points, gamma)
    assert found.alpha == pytest.approx(alpha, rel=1e-6)
    assert found.beta == pytest.approx(beta, rel=1e-6)


def test_gathered_samples_never_cost_less_than_sums() -> None:
    lines = "\n".join(page("mpi4py", 0.0, [], Model(1e-5, 1e-9, 1e-6))).splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith(("| 8 ", "| 16384 "))]
    assert len(rows) == 2
    for _, sums, *gathered in rows:
        assert all(float(cell) >= float(sums) for cell in gathered)

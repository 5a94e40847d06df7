"""Ranks of a host that would share its GPUs are refused by JAX's backend, with what works."""

from pathlib import Path
from typing import Any

import pytest
from disteval import WorldError
from disteval.errors import BackendUnavailableError
from disteval.world import World

from suites.helpers.needs import needs
from suites.helpers.processes import run_plainly, torchrun

pytestmark = needs("jax")


def gathered(backend: Any) -> Any:
    return backend.all_gather_object(backend.rank)


def test_ranks_that_would_share_the_gpus_of_their_host_are_refused() -> None:
    with pytest.raises(WorldError, match=r"\b2 ranks\b.*\b4 GPUs\b") as caught:
        World("suites.contract.jax_gpus:FourGpus", 2)
    assert isinstance(caught.value.common, BackendUnavailableError)
    assert "JAX_PLATFORMS=cpu" in str(caught.value)


def test_one_rank_may_use_all_of_them() -> None:
    with World("suites.contract.jax_gpus:FourGpus", 1) as world:
        assert world.run(gathered) == [[0]]


@needs("torch")
def test_ranks_of_a_launcher_may_have_been_given_one_each(tmp_path: Path) -> None:
    check = "disteval check suites.contract.jax_gpus:OneGpu --rules 1.1"
    script = tmp_path / "rank.sh"
    script.write_text(f"CUDA_VISIBLE_DEVICES=0 exec {check}\n")
    done = run_plainly([*torchrun(2), "sh", str(script)], tmp_path, 120.0)
    assert done.returncode == 0, done.stdout + done.stderr

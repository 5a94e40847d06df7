"""The files of docs/demonstrations.md give the results on the page at any world size."""

import pprint
from pathlib import Path
from typing import Any

import numpy as np
from disteval import get_dist_backend
from disteval.contract import BaseDistBackend
from disteval.world import World

from suites.docs.pages import blocks_of, write_files
from suites.docs.tasks import exactly, load
from suites.helpers.needs import needs

pytestmark = needs("torch", "torch_cpu")

PAGE = "docs/demonstrations.md"


def prepare(folder: Path) -> None:
    """Write the files of the page, and the data that they read."""
    write_files(PAGE, folder)
    for path in folder.glob("*.py"):
        if "\ndef write():" in path.read_text():
            load(path).write()


def evaluate_all(backend: BaseDistBackend, folder: Path) -> dict[str, Any]:
    """Evaluate the task of each file; return the results of its metrics by the file's name."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        module = load(path)
        if hasattr(module, "task"):
            found[path.name] = module.task().evaluate(backend).metrics
        else:
            there = folder / f"{type(backend).__name__}-{backend.world_size}"
            module.run(backend, there)
            if backend.rank == 0:
                found[path.name] = (there / "answers.txt").read_text().splitlines()
    return found


def shown(found: Any) -> str:
    """Return results as the page shows them: with four decimals, or the first lines of a file."""
    if isinstance(found, list):
        return "".join(f"{line}\n" for line in found[:4])
    return pprint.pformat(_rounded(found), width=100, sort_dicts=False) + "\n"


def _rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    return np.round(found, 4).tolist()


def test_the_results_are_those_of_the_page_on_three_ranks_and_on_one(tmp_path: Path) -> None:
    prepare(tmp_path)
    alone = evaluate_all(get_dist_backend("non_dist"), tmp_path)
    page = {block.file: block.output for block in blocks_of(PAGE) if block.file}
    assert {file: shown(found) for file, found in alone.items()} == page
    with World("torch_cpu", 3) as world:
        for rank, found in enumerate(world.run(evaluate_all, *[tmp_path] * 3)):
            if rank:  # the file is written on rank 0
                found["predictions.py"] = alone["predictions.py"]
            assert exactly(found) == exactly(alone), f"rank {rank}"

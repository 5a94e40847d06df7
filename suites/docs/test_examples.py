"""The examples run as a user starts them, and all print the same accuracy."""

import ast
import re
import sys
from pathlib import Path

import pytest
from disteval import BaseDistBackend, get_dist_backend
from disteval.world import World

from suites.docs.tasks import exactly, load
from suites.helpers.needs import needs
from suites.helpers.processes import mpirun, run_plainly
from suites.helpers.thread_world import run_ranks, values

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def clone() -> None:
    if not EXAMPLES.is_dir():
        pytest.skip("the examples are not part of an installed package; run this from a clone")


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        pytest.param("single", 1, marks=needs("torch")),
        pytest.param("torch_dist", 1, marks=needs("torch_cpu")),
        pytest.param("mpi4py", 3, marks=needs("torch", "mpi4py")),
    ],
)
def test_ways_to_evaluate_print_one_accuracy(
    name: str, ranks: int, small_accuracy: dict[str, float], small_cifar10: Path
) -> None:
    assert small_accuracy["top1"] > 0.7
    script = str(EXAMPLES / f"cifar10_eval_{name}.py")
    launcher = mpirun(ranks) if ranks > 1 else ()
    command = ["env", f"CIFAR10_ROOT={small_cifar10}", *launcher, sys.executable, script]
    done = run_plainly(command, EXAMPLES, 180.0)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert ast.literal_eval(line) == small_accuracy


@pytest.mark.parametrize(
    "name",
    [
        "classify_stream",
        "regression",
        "segmentation",
        "several_labels",
        "ranking",
        pytest.param("text_classifier", marks=needs("torch")),
        pytest.param("jax_model", marks=needs("jax")),
        pytest.param("tensorflow_model", marks=needs("tensorflow")),
        pytest.param("perplexity", marks=needs("torch")),
        pytest.param("sklearn_model", marks=needs("sklearn")),
        pytest.param("huggingface_dataset", marks=needs("datasets")),
    ],
)
def test_a_task_prints_the_result_that_it_has_on_any_number_of_ranks(
    name: str, tmp_path: Path
) -> None:
    script = EXAMPLES / f"{name}.py"
    assert len(script.read_text().splitlines()) < 60, "an example is short"
    done = run_plainly([sys.executable, str(script)], tmp_path, 180.0)
    assert done.returncode == 0, done.stderr
    example = load(script)
    for make in filter(None, (example.task, getattr(example, "stream", None))):
        found = [
            result
            for size in (1, 3)
            for result in values(run_ranks(size, lambda b, m=make: m().evaluate(b).metrics))
        ]
        assert len({exactly(result) for result in found}) == 1
        assert str(found[0]) in done.stdout


def evaluate_all(backend: BaseDistBackend, folder: Path) -> str:
    """Return the results of some tasks, and on rank 0 what predictions.py writes."""
    names = ("regression", "several_labels", "ranking", "text_classifier", "segmentation")
    found = {name: load(EXAMPLES / f"{name}.py").task().evaluate(backend).metrics for name in names}
    load(EXAMPLES / "predictions.py").run(backend, folder)
    return exactly(found) + ((folder / "answers.txt").read_text() if backend.rank == 0 else "")


@needs("torch", "torch_cpu")
def test_ranks_that_are_processes_have_the_results_of_one(tmp_path: Path) -> None:
    alone = evaluate_all(get_dist_backend("non_dist"), tmp_path / "1")
    assert alone.endswith(f"\n{102 % 7 + 999}\n")
    with World("torch_cpu", 3) as world:
        first, *others = world.run(evaluate_all, *[tmp_path / "3"] * 3)
    assert first == alone
    assert all(alone.startswith(other) for other in others)


@needs("flax")
def test_the_wrong_ways_in_flax_are_wrong_and_the_right_ways_agree() -> None:
    done = run_plainly([sys.executable, str(EXAMPLES / "flax_full_eval.py")], EXAMPLES, 300.0)
    assert done.returncode == 0, done.stderr
    right = dict(re.findall(r"^(\w+) +(\d+ of \d+) right", done.stdout, flags=re.MULTILINE))
    assert right.pop("drops_the_remainder").endswith("of 32")
    assert right.pop("counts_the_padding").endswith("of 48")
    [(_, samples)] = {tuple(each.split(" of ")) for each in right.values()}
    assert (samples, len(right)) == ("35", 4)


_LIMITED = """
import disteval, numpy, re, resource, runpy, sys
used = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (300 << 20), used + (300 << 20)))
if sys.argv[2:]:
    load, numpy.load = numpy.load, lambda path, mmap_mode=None: load(path)
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs a script with 300 MiB for what it allocates; a second argument has files loaded whole."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory for data")
@pytest.mark.parametrize("whole", [False, True])
def test_a_file_larger_than_the_memory_is_evaluated_unless_it_is_loaded_whole(
    whole: bool, tmp_path: Path
) -> None:
    script = str(EXAMPLES / "larger_than_memory.py")
    command = [sys.executable, "-c", _LIMITED, script]
    done = run_plainly([*command, *["whole"] * whole], tmp_path, 180.0)
    if whole:
        assert "MemoryError: Unable to allocate 512. MiB" in done.stderr
    else:
        assert done.stdout.startswith("{'regression': {'mae': 0.00048828125,"), done.stderr

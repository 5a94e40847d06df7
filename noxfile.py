"""What a person runs: ``nox -s eval`` to see it work, ``nox -s tests`` to prove it.

Every session installs the package with the extra it is about, so that a dependency that nobody
declared shows. torch is pinned: each of its releases is a download of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "virtualenv"
nox.needs_version = ">=2024.10.9"

TORCH = "torch==2.13.0"
JAX = "jax>=0.10,<0.11"
TENSORFLOW = "tensorflow-cpu==2.21.0"
PADDLE = "paddlepaddle==3.3.1"

MODEL_SUITES = [
    "suites/evaluation/test_parity.py",
    "suites/examples/test_flax_full_eval.py",
    "suites/unit/models/test_folding.py",
    "suites/unit/models/test_layouts.py",
    "suites/unit/test_padding.py",
]
"""What a framework's own session runs beside the conformance of its backend."""

TESTS = [
    "lint",
    "typecheck",
    "tests-core",
    "tests-torch",
    "tests-mpi(mpich)",
    "tests-mpi(openmpi)",
    "tests-arrays",
    "tests-tensorflow",
    "tests-horovod",
    "tests-jax",
    "tests-paddle",
]


@nox.session(name="eval")
def evaluate(session: nox.Session) -> None:
    """Evaluate ResNet-18 on three ranks and on one, and hold the two answers together."""
    session.install(".[torch]", TORCH)
    reports = []
    for world_size in (3, 1):
        path = Path(session.create_tmp()) / f"world-{world_size}.json"
        session.run(
            "disteval", "eval", f"--world-size={world_size}", f"--json={path}", *session.posargs
        )
        reports.append(json.loads(path.read_text()))
    three, one = (report["correct"] for report in reports)
    if three != one:
        session.error(f"three ranks counted {three} correct predictions, one rank {one}")
    session.log(f"three ranks and one rank agree: {three} of {reports[0]['evaluated']} correct")


@nox.session
def tests(session: nox.Session) -> None:
    """Run every session that this machine can."""
    for name in TESTS:
        session.notify(name)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and the rule that imports point down."""
    session.install("-e", ".", *nox.project.dependency_groups(_pyproject(), "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Strict types in harness and backends, with the libraries they import at hand."""
    groups = nox.project.dependency_groups(_pyproject(), "typecheck")
    session.install("-e", ".[torch,mpi,conformance]", TORCH, *groups)
    session.run("mypy")


@nox.session(name="tests-core")
def tests_core(session: nox.Session) -> None:
    """Everything that needs no framework, with none installed."""
    session.install(".[conformance]", "pytest-xdist>=3.5")
    _pytest(session, "suites", require="non_dist,threads")


@nox.session(name="tests-torch")
def tests_torch(session: nox.Session) -> None:
    """torch: gloo ranks, the model, and the main job; with a GPU, NCCL too."""
    session.install(".[torch,conformance]", TORCH)
    # As installed, with nothing of this folder: what the wheel lacks shows.
    session.run("disteval", "eval", "--world-size=2")
    _pytest(session, "suites", "--ignore=suites/mutants", require="torch_cpu,torch")


@nox.session(name="tests-mpi")
@nox.parametrize("library", ["mpich", "openmpi"], ids=["mpich", "openmpi"])
def tests_mpi(session: nox.Session, library: str) -> None:
    """MPI under MPICH and Open MPI; torch is there to give the main job its model."""
    extra = {"mpich": "mpi", "openmpi": "openmpi"}[library]
    session.install(f".[torch,{extra},conformance]", TORCH)
    _pytest(session, "suites", "-k", "mpi", require="mpi4py,torch_cpu,torch")


@nox.session(name="tests-arrays")
def tests_arrays(session: nox.Session) -> None:
    """The same metric, the same answer, for torch, JAX and TensorFlow arrays in one process.

    scikit-learn and torchmetrics say what the answer is.
    """
    session.install(".[torch,conformance]", TORCH, JAX, TENSORFLOW, "scikit-learn", "torchmetrics")
    _pytest(session, "suites/unit/metrics", require="torch,jax,tensorflow,sklearn,torchmetrics")


@nox.session(name="tests-tensorflow")
def tests_tensorflow(session: nox.Session) -> None:
    """TensorFlow's own collectives, with nothing else installed."""
    session.install(".[tensorflow,conformance]", TENSORFLOW)
    _conformance(session, "tf_collective", "tensorflow")


@nox.session(name="tests-horovod")
def tests_horovod(session: nox.Session) -> None:
    """Horovod over Gloo; builds its wheel where none is cached."""
    session.install(".[tensorflow,conformance]", TENSORFLOW)
    printed = session.run("python", "tools/build_horovod.py", silent=True, stderr=None)
    wheel = str(printed).strip().splitlines()[-1]
    session.install("--no-deps", wheel)
    session.install("cffi", "cloudpickle", "packaging", "psutil", "pyyaml")
    _conformance(session, "tf_horovod", "tensorflow")


@nox.session(name="tests-jax")
def tests_jax(session: nox.Session) -> None:
    """JAX's multi-process runtime, with nothing else installed."""
    session.install(".[jax,conformance]", JAX)
    _conformance(session, "jax", "flax")


@nox.session(name="tests-paddle")
def tests_paddle(session: nox.Session) -> None:
    """Paddle's process groups, with nothing else installed."""
    session.install(".[paddle,conformance]", PADDLE)
    suites = ["suites/conformance", "suites/unit/cli/test_backends.py"]
    _pytest(session, *suites, "-k", "paddle", require="paddle")


@nox.session
def peers(session: nox.Session) -> None:
    """Hold us against other libraries, and write docs/performance.md and docs/scaling.md."""
    session.install(
        ".[torch,mpi,jax,tensorflow]", TORCH, JAX, TENSORFLOW,
        "torchmetrics", "torcheval", "accelerate", "mmeval==0.2.1", "matplotlib",
    )  # fmt: skip
    page = "--write=docs/performance.md"
    session.run("python", "-m", "suites.benchmarks.peers", page, *session.posargs)
    session.run("python", "-m", "suites.benchmarks.scaling", "--write=docs/scaling.md")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure once, with what is installed here: docs/benchmarks.md has the figures' meaning."""
    session.install(".[torch,mpi,conformance]", TORCH, "asv")
    session.run("asv", "machine", "--yes")
    session.run("asv", "run", "--python=same", "--quick", *session.posargs)


def _conformance(session: nox.Session, backend: str, framework: str) -> None:
    """One backend against the contract and the documents; the model of its framework."""
    required = f"{backend},{framework}"
    suites = ["suites/conformance", "suites/unit/conformance", "suites/unit/worlds"]
    _pytest(session, *suites, "suites/unit/cli/test_backends.py", "-k", backend, require=required)
    _pytest(session, *MODEL_SUITES, "-k", f"not test_the_same or {backend}", require=required)


def _pytest(session: nox.Session, *arguments: str, require: str) -> None:
    session.run("pytest", *arguments, *session.posargs, env={"DISTEVAL_REQUIRE": require})


def _pyproject() -> dict[str, object]:
    return nox.project.load_toml("pyproject.toml")

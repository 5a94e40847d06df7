"""What a person runs: ``nox -s eval`` to see it work, ``nox -s tests`` to prove it.

Every session installs the package with the extra it is about, so that a dependency that nobody
declared shows. torch is pinned: each of its releases is a download of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = False
nox.needs_version = ">=2024.10.9"

TORCH = "torch==2.13.0"
JAX = "jax>=0.10,<0.11"
TENSORFLOW = "tensorflow-cpu==2.21.0"
PADDLE = "paddlepaddle==3.3.1"
COVERAGE = "COVERAGE_FILE"
"""Where each process leaves what it has run, in sessions of `coverage`."""

COVERAGE_TOOL = "coverage>=7.10"

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
"""What the core runs on; those that are not installed are skipped."""

MODEL_SUITES = [
    "suites/frameworks/test_parity.py",
    "suites/docs/test_flax_full_eval.py",
    "suites/frameworks/models/test_folding.py",
    "suites/frameworks/models/test_layouts.py",
    "suites/frameworks/test_padding.py",
]
"""What a framework's own session runs beside the conformance of its backend."""

CORE_SUITES = ["suites/unit", "suites/ranks", "suites/frameworks"]
"""What the core is tried with on other Pythons and older packages."""

NEEDS_NOTHING = [
    "suites/docs/test_pages.py",
    "suites/unit/test_scale.py",
    "suites/mutants",
    "suites/ranks/cli/test_command_line.py",
    "suites/ranks/cli/test_report.py",
    "suites/unit/data",
    "suites/unit/report/test_page.py",
    "suites/unit/test_frame_blocks.py",
    "suites/unit/test_framing.py",
    "suites/unit/test_framing_fuzz.py",
]
"""What is the same with every framework, so that tests-core or tests-web alone runs it."""

ESTIMATOR = ["suites/frameworks/estimator", "suites/ranks/estimator"]

METRICS = ["suites/unit/metrics", "suites/frameworks/metrics"]

TESTS = [
    "lint",
    "typecheck",
    "docs",
    "tests-core",
    "tests-torch",
    "tests-estimator",
    "tests-ray",
    "tests-mpi(mpich)",
    "tests-mpi(openmpi)",
    "tests-arrays",
    "tests-tensorflow",
    "tests-horovod",
    "tests-jax",
    "tests-paddle",
    "tests-oldest",
    "tests-package",
    "tests-web",
]


def _offer_pyenv() -> None:
    """Have pyenv, where there is one, offer every Python that it has, after those in use."""
    if shutil.which("pyenv") is None:
        return
    listed = (["version-name"], ["versions", "--bare", "--skip-aliases"])
    told = [
        subprocess.run(["pyenv", *asked], capture_output=True, text=True, check=False).stdout
        for asked in listed
    ]
    in_use, there = (text.replace(":", "\n").split() for text in told)
    wanted = [name for name in there if name.startswith(tuple(f"{v}." for v in PYTHONS))]
    os.environ["PYENV_VERSION"] = ":".join(dict.fromkeys([*in_use, *wanted]))


def _runs(python: str) -> bool:
    """Whether an interpreter is there; pyenv leaves commands of that name that only complain."""
    path = shutil.which(python)
    return path is not None and not subprocess.run([path, "-V"], capture_output=True).returncode


_offer_pyenv()
# The oldest NumPy that is allowed has wheels for these two.
OLDEST_PYTHON = "3.10" if _runs("python3.10") else "3.11"


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
    session.install("-e", ".[torch,mpi,conformance,report]", TORCH, *groups)
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the pages of docs/ into site/; a warning, a broken link or anchor is an error."""
    groups = nox.project.dependency_groups(_pyproject(), "docs")
    session.install("-e", ".[conformance]", *groups)
    options = ["--fail-on-warning", "--keep-going", "--fresh-env", "--quiet", *session.posargs]
    session.run("sphinx-build", *options, "--conf-dir=docs", ".", "site")
    session.log("open site/index.html")


@nox.session(name="tests-core")
def tests_core(session: nox.Session) -> None:
    """Everything that needs no framework, with none installed."""
    session.install(".[conformance]", "pytest-xdist>=3.5")
    # Ranks mostly wait for each other, so two files at a time are done sooner.
    by_two = ["--numprocesses=2", "--dist=loadfile"]
    _pytest(session, "suites", *by_two, require="non_dist,threads")


@nox.session(name="tests-torch")
def tests_torch(session: nox.Session) -> None:
    """torch: gloo ranks, the model, and the main job; with a GPU, NCCL too."""
    session.install(".[torch,conformance,report]", TORCH)
    # As installed, with nothing of this folder: what the wheel lacks shows.
    session.run("disteval", "eval", "--world-size=2")
    left_out = [f"--ignore={path}" for path in (*NEEDS_NOTHING, *ESTIMATOR)]
    _pytest(session, "suites", *left_out, require="torch_cpu,torch,jsonschema")


@nox.session(name="tests-estimator")
def tests_estimator(session: nox.Session) -> None:
    """Runners, hooks and the estimator on local workers; ``disteval fit``."""
    session.install(".[torch,conformance]", TORCH, "tensorboard")
    _pytest(session, *ESTIMATOR, require="torch_cpu,torch,tensorboard")


@nox.session(name="tests-ray")
def tests_ray(session: nox.Session) -> None:
    """Worlds and the estimator on Ray: here, and over two nodes that are started here."""
    session.install(".[torch,ray,conformance]", TORCH)
    _pytest(session, "suites", "-k", "ray and not array", require="ray,torch_cpu,torch")


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
    _pytest(session, *METRICS, require="torch,jax,tensorflow,sklearn,torchmetrics")


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
    suites = ["suites/ranks/conformance", "suites/ranks/cli/test_backends.py"]
    _pytest(session, *suites, "-k", "paddle", require="paddle")


@nox.session(name="tests-python", python=PYTHONS)
def tests_python(session: nox.Session) -> None:
    """The core on every Python that is allowed, with no framework."""
    session.install(".[conformance]")
    _pytest(session, *CORE_SUITES, require="non_dist,threads")


@nox.session(name="tests-oldest", python=OLDEST_PYTHON)
def tests_oldest(session: nox.Session) -> None:
    """The core with the oldest versions that pyproject.toml allows."""
    session.install(".[conformance,report]", "-c", "tools/oldest.txt")
    _pytest(session, *CORE_SUITES, require="non_dist,threads")


@nox.session(name="tests-package")
def tests_package(session: nox.Session) -> None:
    """What is published: wheel and sdist, installed where there is nothing, and used from there."""
    groups = nox.project.dependency_groups(_pyproject(), "package")
    session.install(".[conformance]", *groups)
    session.env["DISTEVAL_TORCH"] = TORCH
    _pytest(session, "suites/package", require="build,yaml,tomllib")


@nox.session(name="tests-web")
def tests_web(session: nox.Session) -> None:
    """The report page in Chromium, headless, and the JSON behind it against its schema."""
    _install_chromium(session)
    session.install(".[conformance,report]", "selenium>=4.20")
    suites = ["suites/web", "suites/unit/report", "suites/ranks/cli/test_report.py"]
    require = "threads,chromium,selenium,jsonschema,jinja2,matplotlib"
    _pytest(session, *suites, require=require)


def _install_chromium(session: nox.Session) -> None:
    """Get Debian's Chromium where it is missing and may be installed; else a test says so."""
    there = shutil.which("chromium") and shutil.which("chromedriver")
    if there or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    session.run("apt-get", "update", external=True)
    packages = ("chromium", "chromium-driver")
    install = ("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    session.run(*install, env={"DEBIAN_FRONTEND": "noninteractive"}, external=True)


@nox.session
def coverage(session: nox.Session) -> None:
    """Run every session, rank processes included, and report the lines that any of them ran."""
    folder = Path(session.create_tmp()).resolve() / "coverage"
    shutil.rmtree(folder, ignore_errors=True)  # what another tree has run
    folder.mkdir()
    os.environ[COVERAGE] = str(folder / "data")
    for name in TESTS:
        if name.startswith("tests-"):
            session.notify(name)
    session.notify("coverage-report")


@nox.session(name="coverage-report")
def coverage_report(session: nox.Session) -> None:
    """Combine what the sessions of `coverage` measured; fails below what pyproject.toml says."""
    session.install(COVERAGE_TOOL)
    session.run("coverage", "combine", "--keep", str(Path(os.environ[COVERAGE]).parent))
    session.run("coverage", "report")


@nox.session
def mutation(session: nox.Session) -> None:
    """Break shards, frames and metrics one small change at a time; survivors are explained."""
    session.install(".[torch,conformance]", TORCH, JAX, TENSORFLOW, "scikit-learn", "torchmetrics")
    session.install("cosmic-ray>=8.4")
    session.run("python", "tools/mutation.py", *session.posargs)


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
    suites = [
        "suites/ranks/conformance",
        "suites/docs",
        "suites/ranks/conformance",
        "suites/ranks/worlds",
    ]
    _pytest(session, *suites, "suites/ranks/cli/test_backends.py", "-k", backend, require=required)
    _pytest(session, *MODEL_SUITES, "-k", f"not test_the_same or {backend}", require=required)


def _pytest(session: nox.Session, *arguments: str, require: str) -> None:
    command = ["pytest"]
    if COVERAGE in os.environ:
        session.install(COVERAGE_TOOL)
        command = ["coverage", "run", "-m", "pytest"]
    session.run(*command, *arguments, *session.posargs, env={"DISTEVAL_REQUIRE": require})


def _pyproject() -> dict[str, object]:
    return nox.project.load_toml("pyproject.toml")

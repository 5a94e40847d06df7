"""What a person runs: ``nox -s eval`` to see it work, ``nox -s tests`` to prove it.

Every session installs the package with the extra it is about, so that a dependency that nobody
declared shows. torch is pinned: each of its releases is a download of its own.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import nox

nox.options.sessions = ["tests"]
# uv, where it is installed, unpacks a package once for all sessions, which takes a fifth of the
# processor's time and a third of the room on the disk.
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
# What pip would compile is mostly never imported; Python compiles what is imported.
os.environ.setdefault("PIP_COMPILE", "0")
# Threads of torch that wait would spin, and take the cores from the other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # NumPy's, in each process that imports it
# Some images of containers set it, and each of thousands of processes would compile its imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
nox.needs_version = ">=2026.10"  # whose --parallel runs the sessions of `tests`
# Like Ctrl-C, so that nox ends its sessions before it ends; each of its processes reads this file.
signal.signal(signal.SIGTERM, signal.default_int_handler)

COVERAGE = "COVERAGE_FILE"
"""Where each process leaves what it has run, in sessions of `coverage`."""

DURATIONS = "SUITES_DURATIONS"
"""Where the slowest tests of each session are written: a folder, and in a session its file."""

COVERAGE_TOOL = "coverage>=7.10"

MOST_AGAIN = 5
"""How many tests of a session that failed beside other sessions are tried again alone."""

PATIENCE = {"interrupt_timeout": 30.0, "terminate_timeout": 10.0}
"""The seconds in which a program with many others below it ends after Ctrl-C."""

PYPROJECT = nox.project.load_toml("pyproject.toml")
ADDOPTS = PYPROJECT["tool"]["pytest"]["ini_options"]["addopts"]
TABLE = nox.project.load_toml("suites/sessions.toml")
SUITES: dict[str, dict[str, Any]] = TABLE["sessions"]
"""The sessions of tests; what a line of the table means stands at its top."""

TORCH, JAX, TENSORFLOW = (TABLE["versions"][name] for name in ("torch", "jax", "tensorflow"))

TESTS = [*(name for name in SUITES if name != "tests-python"), "static"]
"""What `tests` runs, and ci.yml as jobs."""

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
"""What the core runs on; those that are not installed are skipped."""


_PIP_AS_UV = {
    "find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX",
    "constraint": "UV_CONSTRAINT",
}  # fmt: skip
"""Where pip's settings say what may be installed, and uv's variables that say the same."""


def _offer_pips_settings() -> None:
    """Have uv find what pip finds here; it does not read pip's settings."""
    if "UV_INDEX_STRATEGY" in os.environ:  # the user has chosen, or the nox that started this one
        return
    command = [sys.executable, "-m", "pip", "config", "list"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings = (line.partition("=") for line in told.splitlines())
    for name, _, value in settings:
        if variable := _PIP_AS_UV.get(name.rpartition(".")[2]):
            separator = "," if variable == "UV_FIND_LINKS" else " "
            os.environ.setdefault(variable, separator.join(ast.literal_eval(value).split()))
    os.environ["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip chooses


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


_offer_pips_settings()
_offer_pyenv()
# The oldest NumPy that is allowed has wheels for these two.
OLDEST_PYTHON = "3.10" if _runs("python3.10") else "3.11"


def _build_horovod(session: nox.Session, *options: str) -> None:
    """Install Horovod; its wheel is built where none is cached."""
    session.install("pip")  # which builds it
    printed = session.run("python", "tools/build_horovod.py", *options, silent=True, stderr=None)
    wheel = str(printed).strip().splitlines()[-1]
    session.install("--no-deps", wheel)
    session.install("cffi", "cloudpickle", "packaging", "psutil", "pyyaml")


def _install_chromium(session: nox.Session) -> None:
    """Get Debian's Chromium where it is missing and may be installed; else a test says so."""
    _install_debian(session, ("chromium", "chromedriver"), ("chromium", "chromium-driver"))


def _install_debian(
    session: nox.Session, programs: tuple[str, ...], packages: tuple[str, ...]
) -> None:
    """Install Debian's packages if a program of theirs is missing and they may be installed."""
    there = all(map(shutil.which, programs))
    if there or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    session.run("apt-get", "update", external=True)
    install = ("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    session.run(*install, env={"DEBIAN_FRONTEND": "noninteractive"}, external=True)


def _take_bytecode(session: nox.Session) -> None:
    """Take what Python has compiled of the same files in environments of other sessions.

    Compiling torch takes twice as long as importing it, and TensorFlow 10 s. Packages say by the
    hashes of their files what is the same; this library is installed anew in each environment.
    """
    own, *_ = Path(session.virtualenv.location).resolve().glob("lib/python*/site-packages")
    tag = f"cpython-{own.parent.name.removeprefix('python').replace('.', '')}"
    pattern = f"*/lib/{own.parent.name}/site-packages/*.dist-info/RECORD"
    ours = {path.parent.name: path for path in own.glob("*.dist-info/RECORD")}
    for path in own.parents[3].glob(pattern):
        mine, theirs = ours.get(path.parent.name), path.parents[1]
        if mine is None or theirs == own or path.parent.name.startswith("disteval"):
            continue
        for line in {*mine.read_text().splitlines()} & {*path.read_text().splitlines()}:
            file = Path(line.partition(",")[0])
            if file.suffix == ".py" and "sha256=" in line:
                compiled = file.parent / "__pycache__" / f"{file.stem}.{tag}.pyc"
                with suppress(OSError):  # one is not there, or the other is
                    (own / compiled.parent).mkdir(exist_ok=True)
                    (own / compiled).hardlink_to(theirs / compiled)


PREPARE = {"tests-horovod": _build_horovod, "tests-web": _install_chromium}
"""What these sessions do beside what pip installs."""

PYTHON = {
    "tests-oldest": OLDEST_PYTHON, "tests-python": PYTHONS,
    "tests-records(every_eval_ever)": "3.12",
}  # fmt: skip
"""The interpreters of sessions that do not run on nox's own."""


def _register(name: str, suite: dict[str, Any]) -> None:
    """Make a session of a line of the table."""

    def run(session: nox.Session) -> None:
        groups = nox.project.dependency_groups(PYPROJECT, *suite.get("groups", []))
        versions = TABLE["versions"]
        installs = [text.format(**versions) for text in suite["installs"]]
        variables = dict(suite.get("variables", {}))
        session.install(*installs, *groups)
        PREPARE.get(name, lambda _: None)(session)
        _take_bytecode(session)
        command = ["pytest"]
        if COVERAGE in os.environ:
            session.install(COVERAGE_TOOL)
            command = ["coverage", "run", "-m", "pytest"]
        arguments = ["-m", suite["selects"], *suite.get("options", [])]
        if not any(Path(text.partition("::")[0]).exists() for text in session.posargs):
            # Not as options, which are refused where the user selects no test that takes them.
            settings = [ADDOPTS, *suite.get("worlds", [])]
            arguments += [f"--override-ini=addopts={' '.join(settings)}"]
            arguments += [f"suites/{name}" for name in suite["folders"]]
        # What the user adds comes last, so that their -m is the one that counts.
        arguments += session.posargs
        variables |= {"DISTEVAL_REQUIRE": suite["requires"]}
        cache = session.cache_dir.resolve() / "pytest" / session.name
        arguments += [f"--override-ini=cache_dir={cache}"]
        if DURATIONS in os.environ:
            variables |= {DURATIONS: f"{os.environ[DURATIONS]}/{session.name}.txt"}
            arguments += ["--cache-clear"]
        session.run(*command, *arguments, env=variables)

    run.__doc__ = suite["proves"]
    nox.session(run, name=name, python=PYTHON.get(name))


for _name, _suite in SUITES.items():
    _register(_name, _suite)


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
    three, one = (report["metrics"]["accuracy"]["correct_top1"] for report in reports)
    if three != one:
        session.error(f"three ranks counted {three} correct predictions, one rank {one}")
    session.log(f"three ranks and one rank agree: {three} of {reports[0]['size']} correct")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run every session that this machine can, four at a time, and say what each took.

    Sessions that are named after ``--`` are run alone.
    """
    _side_by_side(session, session.posargs or TESTS)


@nox.session
def static(session: nox.Session) -> None:
    """Style, imports that point down, strict types, and docs/ as pages in site/ without a warning.

    ``-- ruff``, ``-- imports``, ``-- types`` or ``-- docs`` does one of these alone.
    """
    groups = nox.project.dependency_groups(PYPROJECT, "lint", "typecheck", "docs")
    # mypy takes what frameworks return for Any, installed or not.
    session.install("-e", ".[conformance,report]", *groups)
    sphinx = ["sphinx-build", "--fail-on-warning", "--keep-going", "--fresh-env", "--quiet"]
    commands = {
        "ruff": [["ruff", "check", "."], ["ruff", "format", "--check", "."]],
        "imports": [["lint-imports"]],
        "types": [["mypy"]],
        "docs": [[*sphinx, "--conf-dir=docs", ".", "site"]],
    }
    for name in session.posargs or commands:
        for command in commands[name]:
            session.run(*command)


@nox.session
def coverage(session: nox.Session) -> None:
    """Run every session of tests, rank processes included, and report the lines that any ran.

    Sessions that are named after ``--`` are run alone. Fails below what pyproject.toml says.
    """
    session.install(COVERAGE_TOOL)
    folder = session.cache_dir.resolve() / "coverage"
    shutil.rmtree(folder, ignore_errors=True)  # what another tree has run
    folder.mkdir()
    session.env[COVERAGE] = str(folder / "data")
    names = session.posargs or [name for name in TESTS if name.startswith("tests-")]
    _side_by_side(session, names)
    session.run("coverage", "combine", "--keep", str(folder))
    session.run("coverage", "report")


@nox.session
def faults(session: nox.Session) -> None:
    """Kill, stop, slow and starve real runs at random moments, and check what comes of them.

    Not part of `tests`. ``-- --minutes 2`` is the short form, and ``-- --seed 1234`` replays a run.
    """
    session.install(".[torch,mpi,conformance,report]", TORCH)
    session.run("python", "-m", "suites.faults", *session.posargs, **PATIENCE)


@nox.session(name="hosts-slurm")
@nox.parametrize("mpi", [nox.param("mpi", id="mpich"), nox.param("openmpi", id="openmpi")])
def hosts_slurm(session: nox.Session, mpi: str) -> None:
    """Join what SLURM starts on two hosts, which are namespaces here; needs root.

    Not part of `tests`. Debian's SLURM is installed where it is missing.
    """
    session.install(f".[torch,{mpi},conformance]", TORCH)
    _install_debian(session, ("slurmctld", "slurmd", "srun"), ("slurm-wlm", "libpmix-dev"))
    required = {"DISTEVAL_REQUIRE": "slurm,mpi4py,torch_cpu"}
    session.run("pytest", "suites/worlds/test_hosts_slurm.py", env=required)


@nox.session
def sound(session: nox.Session) -> None:
    """Audit loops over other libraries that are right; each must be found sound.

    Not part of `tests`. ``-- lightning_loops`` audits the loops with that in their names alone.
    """
    pinned = "suites/audit/sound/requirements.txt"
    session.install(".[torch,conformance]", TORCH, "--requirement", pinned)
    # They ask for torchvision, and need it for images alone.
    session.install("--no-deps", "litdata==0.2.76", "timm==1.0.31")
    session.run("python", "-m", "suites.audit.sound", *session.posargs)
    if not session.posargs:
        # The functions to start from, of which `tests` has only the libraries that load quickly.
        required = {"DISTEVAL_REQUIRE": "lightning,transformers,trl,lm_eval,ignite,mmengine"}
        session.run("pytest", "suites/audit/test_starters.py", env=required)


@nox.session
def findings(session: nox.Session) -> None:
    """Replay what findings/ says of other libraries, one environment after the other.

    Not part of `tests`. ``-- accelerate-reduce`` replays one finding, ``-- accelerate`` those of a
    library.
    """
    sys.path.insert(0, str(Path(__file__).parent))
    from suites.findings.page import Environment
    from suites.findings.replay import chosen, findings

    replayed: dict[Environment, list[str]] = {}
    for one in chosen(session.posargs) if session.posargs else findings():
        for environment in one.environments:
            replayed.setdefault(environment, []).append(one.slug)
    failed = []
    for environment, slugs in sorted(replayed.items()):
        # nox has no public way to change a session's Python.
        session.virtualenv.interpreter = environment.python or None
        session.virtualenv._resolved = None
        session.virtualenv.create()  # without what the last one had
        try:
            _install(session, environment)
            session.run("python", "-m", "suites.findings.replay", *slugs)
        except nox.command.CommandFailed:
            failed.append(" ".join([environment.library, *environment.others]))
    if failed:
        session.error(f"not installed, or not as the pages say, with {'; '.join(failed)}")


def _install(session: nox.Session, environment: Any) -> None:
    """Install what a finding is about."""
    library, others, no_deps, _ = environment
    build = library.startswith("horovod==")
    wanted = [*others] if no_deps or build else [library, *others]
    session.install(".[conformance]", *wanted)
    if no_deps:
        session.install("--no-deps", library)
    if build:
        _build_horovod(session, "--unrepaired")


@nox.session
def peers(session: nox.Session) -> None:
    """Hold us against other libraries, and write the table of docs/performance.md."""
    session.install(
        ".[torch,mpi,jax,tensorflow]", TORCH, JAX, TENSORFLOW,
        "torchmetrics", "accelerate",
    )  # fmt: skip
    page = "--write=docs/performance.md"
    session.run("python", "-m", "suites.benchmarks.peers", page, *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure once, with what is installed here: docs/performance.md has the figures' meaning."""
    session.install(".[torch,mpi,conformance]", TORCH, "asv")
    session.run("asv", "machine", "--yes")
    session.run("asv", "run", "--python=same", "--quick", *session.posargs)


def _side_by_side(session: nox.Session, names: list[str]) -> None:
    """Run sessions four at a time, each one's output in one piece, and say what each took.

    Ranks mostly wait for each other, and so does who installs, so that three leave cores idle.
    """
    # Not in session.create_tmp(): it would be every session's TMPDIR, too long for sockets.
    report = session.cache_dir.resolve() / "sessions.json"
    durations = report.with_name("durations")
    shutil.rmtree(durations, ignore_errors=True)  # those of an earlier run
    durations.mkdir()
    command = ["-m", "nox", "--parallel=4", "--allow-parallel", f"--report={report}", "-s", *names]
    report.unlink(missing_ok=True)  # that of an earlier run
    begin = time.monotonic()
    codes = range(256)
    env = {DURATIONS: str(durations)}
    session.run(sys.executable, *command, env=env, external=True, success_codes=codes, **PATIENCE)
    if not report.exists():
        session.error("nox ran no session; the reason is above")
    found = json.loads(report.read_text())["sessions"]
    print(f"\n{'session':24}{'result':12}{'minutes':>8}")
    for one in found:
        print(f"{one['name']:24}{one['result']:12}{one['duration'] / 60:8.1f}")
    print(f"{'all, four at a time':36}{(time.monotonic() - begin) / 60:8.1f}")
    print(f"the slowest tests of each: {durations}", flush=True)
    failed = [one["name"] for one in found if one["result"] not in ("success", "skipped")]
    if failed := [name for name in failed if not _passes_alone(session, name, durations)]:
        session.error(f"failed: {', '.join(failed)}; their output is above")


def _passes_alone(session: nox.Session, name: str, durations: Path) -> bool:
    """Try the few tests that failed in a session once more, alone, as a check does, and tell them.

    A session of which too many failed, or that did not come to its end, is not tried again.
    """
    file = durations / f"{name}.failed"
    tests = file.read_text().splitlines() if file.exists() else []
    if not 0 < len(tests) <= MOST_AGAIN:
        return False
    again = ["-m", "nox", "--reuse-venv=always", "--no-install", "-s", name, "--", "--last-failed"]
    try:
        session.run(sys.executable, *again, external=True, **PATIENCE)
    except nox.command.CommandFailed:
        return False
    for test in tests:
        print(f"failed beside other sessions, and passed alone: {test}", flush=True)
    return True

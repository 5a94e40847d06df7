"""Change the most important modules in one place at a time, and name changes that no test noticed.

cosmic-ray makes the mutants; each runs the tests of its module in a copy of the folder. Of an
operator's many replacements the nearest is taken (``<`` becomes ``<=``, ``+`` becomes ``-``), and
what stands in a type is left alone: it is never evaluated. A mutant that survives, or runs into the
time limit, has to be explained in `survivors.toml`; one that is not, and an explanation that no
mutant needs, fail. Modules that were not asked for are not judged.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings it there
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
EXPLAINED = Path(__file__).with_name("survivors.toml")
TIMEOUT_S = 120.0
# A failure is all that is asked for: to find a smaller example of it takes minutes.
PYTEST = [
    *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
    *("--hypothesis-profile=unshrunk", "--hypothesis-seed=0"),
]

FRAMES = ["unit/test_frames", "unit/test_frame_blocks", "unit/test_frames_fuzz"]
COVERAGE = ["unit/test_coverage", "unit/test_counted"]
TESTS = {
    "harness/disteval/sharding.py": ["unit/test_sharding"],
    "harness/disteval/coverage/counted.py": COVERAGE,
    "harness/disteval/coverage/faults.py": COVERAGE,
    "harness/disteval/coverage/proof.py": COVERAGE,
    "harness/disteval/frames/cap.py": FRAMES,
    "harness/disteval/frames/layout.py": FRAMES,
    "harness/disteval/frames/serialising.py": FRAMES,
    "harness/disteval/frames/tags.py": FRAMES,
    "harness/disteval/metrics/accuracy.py": [
        "unit/metrics/test_accuracy",
        "unit/metrics/test_labels",
    ],
    "harness/disteval/metrics/arrays.py": [
        "frameworks/metrics/test_arrays",
        "frameworks/metrics/test_accuracy_frameworks",
        "unit/metrics/test_mean",
    ],
    "harness/disteval/metrics/base.py": ["unit/metrics/test_base", "unit/metrics/test_failures"],
    "harness/disteval/metrics/columns.py": ["unit/metrics/test_columns", "unit/metrics/test_base"],
    "harness/disteval/metrics/confusion.py": ["unit/metrics/test_confusion"],
    "harness/disteval/metrics/exact.py": ["unit/metrics/test_exact", "unit/metrics/test_mean"],
    "harness/disteval/metrics/group.py": ["unit/metrics/test_summable"],
    "harness/disteval/metrics/ids.py": ["unit/metrics/test_ids"],
    "harness/disteval/metrics/labels.py": [
        "unit/metrics/test_labels",
        "unit/metrics/test_confusion",
    ],
    "harness/disteval/metrics/mean.py": ["unit/metrics/test_mean"],
    "harness/disteval/metrics/ranking.py": ["unit/metrics/test_ranking"],
    "harness/disteval/metrics/rows.py": [
        "unit/metrics/test_summable",
        "unit/metrics/test_failures",
    ],
    "harness/disteval/metrics/summable.py": [
        "unit/metrics/test_summable",
        "unit/metrics/test_ids",
        "unit/metrics/test_failures",
    ],
    "harness/disteval/metrics/tensors.py": ["frameworks/metrics/test_tensors"],
    "harness/disteval/metrics/torchmetrics_adapter.py": [
        "frameworks/metrics/test_torchmetrics",
        "frameworks/metrics/test_torchmetrics_refused",
    ],
}
"""Each module, and the tests below suites that have to notice a change in it."""

NEAREST = re.compile(
    r"core/(AddNot|ExceptionReplacer|NumberReplacer|RemoveDecorator|ZeroIterationForLoop"
    r"|Replace(AndWithOr|OrWithAnd|TrueWithFalse|FalseWithTrue)"
    r"|Replace(BreakWithContinue|ContinueWithBreak)|ReplaceUnaryOperator_(Delete_\w+|USub_UAdd)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Add|Mul_FloorDiv|FloorDiv_Mul|Div_Mul"
    r"|Mod_FloorDiv|LShift_RShift|RShift_LShift|BitAnd_BitOr|BitOr_BitAnd|Pow_Mul)"
    r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is))"
)


class Outcome(NamedTuple):
    """The result of the tests on one mutant: ``killed``, ``survived`` or ``timed out``."""

    module: str
    place: str
    line: str
    result: str


def mutants_of(module: str) -> list[MutationSpec]:
    """Return the mutants of a module that cosmic-ray lists, without those that are not tried."""
    with tempfile.TemporaryDirectory() as folder:
        config, session = Path(folder) / "config.toml", Path(folder) / "session.sqlite"
        config.write_text(
            f'[cosmic-ray]\nmodule-path = "{module}"\ntimeout = {TIMEOUT_S}\n'
            'excluded-modules = []\ntest-command = ""\n[cosmic-ray.distributor]\nname = "local"\n'
        )
        command = [sys.executable, "-m", "cosmic_ray.cli", "init", str(config), str(session)]
        subprocess.run(command, check=True, cwd=ROOT)
        with use_db(str(session)) as database:
            mutations = [item.mutations[0] for item in database.work_items]
    types = _types_of(ROOT / module)
    mutants = [
        mutation
        for mutation in mutations
        if NEAREST.fullmatch(mutation.operator_name)
        and not any(start <= mutation.start_pos < end for start, end in types)
    ]
    return sorted(mutants, key=lambda one: (one.start_pos, one.operator_name, one.occurrence))


def _types_of(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    spans = []
    for node in ast.walk(ast.parse(path.read_text())):
        for name in ("annotation", "returns"):
            typed = getattr(node, name, None)
            if isinstance(typed, ast.expr):
                end = (typed.end_lineno or 0, typed.end_col_offset or 0)
                spans.append(((typed.lineno, typed.col_offset), end))
    return spans


class Copy:
    """A copy of the repository that mutants break, one at a time.

    Each process that works for it has the copy's path in its environment, as PYTHONPATH.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("harness", "backends", "suites"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        # A compiled file is told from a stale one by its second, and a mutant lives shorter.
        compiling = ["compileall", "-q", "--invalidation-mode=checked-hash", "harness", "backends"]
        subprocess.run([sys.executable, "-m", *compiling], cwd=folder, check=True)
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(folder / name) for name in ("harness", "backends")),
            "TMPDIR": str(folder),
        }

    def passes(self, modules: list[str]) -> bool:
        """Return whether every test passes on unchanged code; otherwise mutants prove nothing."""
        tests = sorted({path for module in modules for path in _files(module)})
        command = [*PYTEST, *tests]
        # It leaves the tests compiled, which do not change.
        return not subprocess.run(command, cwd=self.folder, env=self._environment).returncode

    def begin(self, mutation: MutationSpec) -> None:
        """Make a mutant, and start the tests of its module."""
        module = str(mutation.module_path)
        self.place = f"{module}:{mutation.start_pos[0]} {mutation.operator_name[5:]}"
        self._path, self._original = self.folder / module, (ROOT / module).read_text()
        operator = get_operator(mutation.operator_name)(**mutation.operator_args)
        mutated = mutate_code(self._original, operator, mutation.occurrence)
        if mutated is None:
            raise RuntimeError(f"cosmic-ray made no mutant at {self.place}")
        diff = list(difflib.ndiff(self._original.splitlines(), mutated.splitlines()))
        new, old = ([line[2:].strip() for line in diff if line[0] == sign] for sign in "+-")
        self.line = " ".join(new) or f"without {' '.join(filter(None, old))}"
        self._path.write_text(mutated)
        self._process = subprocess.Popen(
            [*PYTEST, *_files(module)],
            cwd=self.folder,
            env=self._environment | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this program alone
        )
        self._deadline = time.monotonic() + TIMEOUT_S
        self._module = module

    def outcome(self) -> Outcome | None:
        """Return the result once the tests have ended or run out of time, and end what is left."""
        status = self._process.poll()
        if status is None and time.monotonic() < self._deadline:
            return None
        end_processes(self.folder)
        self._process.wait()
        self._path.write_text(self._original)
        result = {None: "timed out", 0: "survived"}.get(status, "killed")
        return Outcome(self._module, self.place, self.line, result)


def _files(module: str) -> list[str]:
    return [f"suites/{name}.py" for name in TESTS[module]]


def end_processes(folder: Path) -> None:
    """Kill every process that has the folder in its environment, and those they start meanwhile."""
    named, found = os.fsencode(f"={folder}{os.sep}"), True
    while found:
        found = False
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                if named in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
                    found = True
            except OSError:  # it has ended, or is another user's
                continue


def guard(folder: Path) -> None:
    """Wait until the program that holds the other end of standard input ends, and clear up."""
    sys.stdin.read()
    end_processes(folder)
    shutil.rmtree(folder, ignore_errors=True)


def outcomes_of(mutants: list[MutationSpec], copies: list[Copy]) -> Iterator[Outcome]:
    """Run the tests on each mutant, and yield what came of it."""
    parent, waiting, free, running = os.getppid(), iter(mutants), list(copies), []
    while True:
        while free and (mutant := next(waiting, None)):
            free[-1].begin(mutant)
            running.append(free.pop())
        if not running:
            return
        time.sleep(0.05)
        if os.getppid() != parent:
            raise KeyboardInterrupt
        for copy in list(running):
            if outcome := copy.outcome():
                running.remove(copy)
                free.append(copy)
                yield outcome


def main() -> int:
    """Print each survivor and a table, and return 1 if a survivor is not explained."""
    parser = argparse.ArgumentParser(prog="nox -s mutation --", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the modules' paths; all without any")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--guard", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.guard:
        guard(options.guard)
        return 0
    for name in options.names:
        if not any(name in module for module in TESTS):
            parser.error(f"no module here has {name!r} in its path; known are {', '.join(TESTS)}")
    modules = [one for one in TESTS if any(name in one for name in options.names or [""])]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    # It also clears up after this program where that is killed.
    watching = [sys.executable, __file__, f"--guard={folder}"]
    guarding = subprocess.Popen(watching, stdin=subprocess.PIPE, start_new_session=True)
    try:
        copies = [Copy(folder / str(number)) for number in range(options.jobs)]
        if not all(copy.passes(modules) for copy in copies):
            return 1
        outcomes = []
        mutants = [mutant for module in modules for mutant in mutants_of(module)]
        for outcome in outcomes_of(mutants, copies):
            outcomes.append(outcome)
            if outcome.result != "killed":
                print(f"{outcome.result}: {outcome.place}: {outcome.line}", flush=True)
        return report(outcomes, modules)
    except KeyboardInterrupt:
        return 130
    finally:
        guarding.communicate()


def report(outcomes: list[Outcome], modules: list[str]) -> int:
    """Compare what no test killed with the explanations."""
    entries = tomllib.loads(EXPLAINED.read_text())
    explained = {(m, line) for m in modules for line in entries.get(m, {})}
    alive = {(o.module, o.line) for o in outcomes if o.result != "killed"}
    print(f"{'module':45} mutants  killed  timed out  explained  left")
    for module in modules:
        own = [o for o in outcomes if o.module == module]
        results = [o.result for o in own]
        left = [(o.module, o.line) for o in own if o.result != "killed"]
        known = sum(key in explained for key in left)
        killed, late = (results.count(name) for name in ("killed", "timed out"))
        print(f"{module:45} {len(own):7} {killed:7} {late:10} {known:10} {len(left) - known:5}")
    for module, line in sorted(alive - explained):
        print(f"no test saw, and {EXPLAINED.name} does not explain: {module}: {line}")
    for module, line in sorted(explained - alive):
        print(f"{EXPLAINED.name} explains what a test kills now: {module}: {line}")
    return int(alive != explained)


if __name__ == "__main__":
    sys.exit(main())

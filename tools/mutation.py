"""Change the most important modules in one place at a time, and name changes that no test noticed.

cosmic-ray makes the mutants; each runs the tests of its module in a copy of the folder. Of an
operator's many replacements the nearest is taken (``<`` becomes ``<=``, ``+`` becomes ``-``), and
what stands in a type is left alone: it is never evaluated. A mutant that survives has to be
explained in `survivors.toml`; one that is not, and an explanation that no mutant needs, fail.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import TestOutcome, WorkItem

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings it there
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
EXPLAINED = Path(__file__).with_name("survivors.toml")
TIMEOUT_S = 60.0
PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]

FRAMES = ["unit/test_frames", "unit/test_frame_blocks", "unit/test_frames_fuzz"]
TESTS = {
    "harness/disteval/sharding.py": ["unit/test_sharding"],
    "harness/disteval/frames/cap.py": FRAMES,
    "harness/disteval/frames/layout.py": FRAMES,
    "harness/disteval/frames/serialising.py": FRAMES,
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
    "harness/disteval/metrics/torchmetrics_adapter.py": ["frameworks/metrics/test_torchmetrics"],
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
    """The result of the tests on one mutant."""

    module: str
    place: str
    line: str
    survived: bool
    timed_out: bool


def mutants_of(module: str) -> list[WorkItem]:
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
            items = list(database.work_items)
    types = _types_of(ROOT / module)
    mutants = [
        item
        for item in items
        if NEAREST.fullmatch(item.mutations[0].operator_name)
        and not any(start <= item.mutations[0].start_pos < end for start, end in types)
    ]
    return sorted(mutants, key=lambda item: (item.mutations[0].start_pos, item.job_id))


def _types_of(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    spans = []
    for node in ast.walk(ast.parse(path.read_text())):
        for name in ("annotation", "returns"):
            typed = getattr(node, name, None)
            if isinstance(typed, ast.expr):
                end = (typed.end_lineno or 0, typed.end_col_offset or 0)
                spans.append(((typed.lineno, typed.col_offset), end))
    return spans


def work_in_a_copy(parent: str) -> None:
    """Copy the repository to a folder in which this process can break it."""
    copy = Path(tempfile.mkdtemp(dir=parent))
    for name in ("harness", "backends", "suites"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    os.chdir(copy)
    # A compiled file is told from a stale one by its second, and a mutant lives shorter.
    os.environ.update(
        PYTHONPATH=os.pathsep.join(str(copy / name) for name in ("harness", "backends")),
        PYTHONDONTWRITEBYTECODE="1",
    )


def outcome_of(item: WorkItem) -> Outcome:
    """Run the tests of its module on a mutant, and return the result."""
    mutation = item.mutations[0]
    module = str(mutation.module_path)
    command = " ".join([*PYTEST, "--hypothesis-seed=0", *_files(module)])
    result = mutate_and_test(item.mutations, command, TIMEOUT_S)
    if result.test_outcome is None:
        raise RuntimeError(f"cosmic-ray made no mutant at {module}:{mutation.start_pos}: {result}")
    place = f"{module}:{mutation.start_pos[0]} {mutation.operator_name.removeprefix('core/')}"
    lines = (result.diff or "").splitlines()
    changed = [line[1:].strip() for line in lines if re.match(r"\+(?!\+\+)", line)]
    removed = [line[1:].strip() for line in lines if re.match(r"-(?!--)", line)]
    text = " ".join(changed) or f"without {' '.join(filter(None, removed))}"
    timed_out = result.output == "timeout"  # what cosmic-ray says instead of pytest
    return Outcome(module, place, text, result.test_outcome == TestOutcome.SURVIVED, timed_out)


def unmutated_passes(modules: list[str]) -> bool:
    """Return whether every test passes on unchanged code; otherwise mutants prove nothing."""
    tests = sorted({path for module in modules for path in _files(module)})
    return subprocess.run([*PYTEST, *tests], cwd=ROOT).returncode == 0


def _files(module: str) -> list[str]:
    return [f"suites/{name}.py" for name in TESTS[module]]


def main() -> int:
    """Print each survivor and a table, and return 1 if a survivor is not explained.

    What ran into the timeout has a line too: it hangs, or the machine is too busy to tell.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="of those known; all without any")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    options = parser.parse_args()
    modules = options.modules or list(TESTS)
    for module in modules:
        if module not in TESTS:
            parser.error(f"{module!r} has no tests here; known are {', '.join(TESTS)}")
    if not unmutated_passes(modules):
        return 1
    items = [item for module in modules for item in mutants_of(module)]
    with tempfile.TemporaryDirectory() as parent:
        copies = {"initializer": work_in_a_copy, "initargs": (parent,)}
        with ProcessPoolExecutor(options.jobs, **copies) as pool:
            outcomes = []
            for outcome in pool.map(outcome_of, items):
                outcomes.append(outcome)
                if outcome.survived or outcome.timed_out:
                    what = "survived" if outcome.survived else f"killed after {TIMEOUT_S:g} s"
                    print(f"{what}: {outcome.place}: {outcome.line}", flush=True)
    return report(outcomes, modules)


def report(outcomes: list[Outcome], modules: list[str]) -> int:
    """Compare the survivors with their explanations."""
    entries = tomllib.loads(EXPLAINED.read_text())
    explained = {(m, line) for m in modules for line in entries.get(m, {})}
    survivors = {(o.module, o.line) for o in outcomes if o.survived}
    print(f"{'module':45} mutants  killed  explained  left")
    for module in modules:
        own = [o for o in outcomes if o.module == module]
        alive = [(o.module, o.line) for o in own if o.survived]
        known = sum(key in explained for key in alive)
        counts = (len(own), len(own) - len(alive), known, len(alive) - known)
        print(f"{module:45} {counts[0]:7} {counts[1]:7} {counts[2]:10} {counts[3]:5}")
    for module, line in sorted(survivors - explained):
        print(f"no test saw, and {EXPLAINED.name} does not explain: {module}: {line}")
    for module, line in sorted(explained - survivors):
        print(f"{EXPLAINED.name} explains what a test kills now: {module}: {line}")
    return int(survivors != explained)


if __name__ == "__main__":
    sys.exit(main())

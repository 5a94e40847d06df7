"""``python -m suites.faults``: what ``nox -s faults`` runs."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from disteval.data import load_cifar10
from disteval.models import default_weights
from disteval.models.resnet18_torch import make_predict

from suites.faults.checker import judge
from suites.faults.runs import ENDING_SECONDS, KINDS, START_SECONDS, TIMEOUTS, Draw, Kind, draw
from suites.helpers.pictures import write_small_cifar10

_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--fork"]
_UNSHARE += ["--mount-proc", "--kill-child", "--"]


class Found(NamedTuple):
    """What one run found: a word for how it went, the violations, and everything that was seen."""

    draw: Draw
    result: str
    wrong: list[str]
    details: Any


class Session:
    """Does runs in one folder, and knows what each kind of run is like without a fault."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        (folder / "data").mkdir()
        # So many that a fault may come while they are evaluated.
        write_small_cifar10(folder / "data", test=301)
        self._truth = _count_right(folder / "data")
        self._usual: dict[int, tuple[float, Any, list[str]]] = {}
        self._locks = [threading.Lock() for _ in KINDS]
        # Nobody else has the end to write to, so runs read its end when this process has ended.
        self._input, self._held = os.pipe()

    def close(self) -> None:
        """End the runs that are under way."""
        os.close(self._held)

    def run(self, seed: int) -> Found:
        """Do the run of a seed."""
        drawn = draw(seed)
        with self._locks[drawn.kind]:
            if drawn.kind not in self._usual:
                found, _, wrong = self._judged(drawn.kind, None, 60.0, None)
                seconds = found["ending"]["seconds"] if "ending" in found else 0.0
                self._usual[drawn.kind] = seconds, found.get("weights"), wrong
        seconds, weights, wrong = self._usual[drawn.kind]
        if wrong:
            return Found(drawn, "right", [f"without a fault: {each}" for each in wrong], None)
        found, result, wrong = self._judged(drawn.kind, drawn, seconds, weights)
        if not (wrong or found["done"] or drawn.fault == "none"):
            result = "missed"  # the moment or the victim never came
        return Found(drawn, result, wrong, found)

    def _judged(
        self, number: int, drawn: Draw | None, usual: float, weights: Any
    ) -> tuple[dict[str, Any], str, list[str]]:
        """Do one run; return what was seen, how it went and what is wrong."""
        kind, folder = KINDS[number], self._folder / str(next(self._numbers))
        folder.mkdir()
        limit = _limit(kind, drawn, usual)
        # Ranks of a launcher that is gone end by themselves.
        grace = limit if kind.outer and drawn is not None else 10.0 * _load()
        spec = {"kind": number, "seed": drawn and drawn.seed, "data": str(self._folder / "data")}
        spec |= {"usual": usual, "limit": limit, "grace": grace}
        (folder / "spec.json").write_text(json.dumps(spec))
        done = subprocess.run(
            [*_UNSHARE, sys.executable, "-m", "suites.faults.inside", str(folder)],
            cwd=Path(__file__).parents[2], stdin=self._input, capture_output=True, text=True,
            timeout=2 * limit + 120, check=False,
        )  # fmt: skip
        if not (folder / "found.json").exists():
            return {"done": [], "error": done.stderr}, "", [f"the run failed: {done.stderr[-800:]}"]
        found = json.loads((folder / "found.json").read_text())
        shutil.rmtree(folder, ignore_errors=True)
        return (found, *judge(kind, drawn, found, self._truth | {"weights": weights}))


def _count_right(folder: Path) -> dict[str, Any]:
    """Count the right predictions in one process, with NumPy alone."""
    dataset = load_cifar10(folder)
    scores = np.asarray(make_predict(default_weights())(dataset.images))
    order = np.argsort(-scores, axis=1, kind="stable")
    hits = order == np.asarray(dataset.labels)[:, None]
    correct = {f"top{k}": int(hits[:, :k].any(1).sum()) for k in (1, 3)}
    return {"correct": correct, "size": len(dataset)}


def _load() -> float:
    """Return how many times slower than alone a process runs here now, roughly."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _limit(kind: Kind, drawn: Draw | None, usual: float) -> float:
    """Return the seconds within which all must be over, from the deadlines that are documented."""
    detail = drawn.detail if drawn else {}
    limit = 3 * usual + ENDING_SECONDS * _load() + detail.get("until killed after", 0)
    limit += 2 * detail.get("for", 0) * detail.get("times", 1)
    if drawn is None or drawn.fault in ("stop", "lost connection", "full disk"):
        # A wait of the start and of an order run out; a check tries again in a fresh world.
        waits = START_SECONDS + TIMEOUTS[kind.what] + ENDING_SECONDS
        limit += waits * (3 if kind.what == "check" else 1)
    return limit


def _runs(session: Session, options: argparse.Namespace) -> Iterator[Found]:
    """Do so many runs at a time, and yield each when it is over."""
    drawn = itertools.islice(itertools.count(options.first), options.runs)
    seeds = iter(options.seed) if options.seed else drawn
    end = time.monotonic() + options.minutes * 60
    # The session is closed first: nobody waits for the runs that it ends.
    with ThreadPoolExecutor(options.jobs) as pool, closing(session):
        pending: set[Future[Found]] = set()
        while True:
            if time.monotonic() < end:
                for seed in itertools.islice(seeds, options.jobs - len(pending)):
                    pending.add(pool.submit(session.run, seed))
            if not pending:
                return
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def main() -> int:
    """Do runs until the time is over, print the table, and return 1 unless all was judged right."""
    parser = argparse.ArgumentParser(prog="nox -s faults --", description=__doc__)
    parser.add_argument("--minutes", type=float, default=55.0, help="how long runs are begun")
    parser.add_argument("--runs", type=int, help="how many runs at most")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first run")
    parser.add_argument("--seed", type=int, nargs="+", help="do these runs only, and tell all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many runs at a time")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}, and it has to be 1 or more")
    if subprocess.run([*_UNSHARE, "true"], check=False).returncode:
        print("no namespaces can be made here, so nothing was proved")
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the table is printed then
    begin, interrupted = time.monotonic(), 0
    results, bad = Counter[str](), list[Found]()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        try:
            for one in _runs(Session(Path(name)), options):
                result = "VIOLATION" if one.wrong else one.result
                results[f"{one.draw.fault:17}{KINDS[one.draw.kind].what:9}{result}"] += 1
                bad += [one] * bool(one.wrong)
                story = f"{KINDS[one.draw.kind].name}: {one.draw.story()}: {result}"
                print("\n    ".join([f"seed {one.draw.seed}: {story}", *one.wrong]))
                if one.wrong or options.seed:
                    print(json.dumps(one.details, indent=4).replace("\\n", "\n        "))
                sys.stdout.flush()
        except KeyboardInterrupt:
            interrupted = 130
    for row, number in sorted(results.items()):
        print(f"{row}: {number}")
    for one in bad:
        print(f"violation: seed {one.draw.seed}: {one.wrong[0][:150]}")
    minutes = (time.monotonic() - begin) / 60
    print(f"{results.total()} runs in {minutes:.1f} minutes, {len(bad)} with a violation")
    return interrupted or int(bool(bad) or not results)


if __name__ == "__main__":
    sys.exit(main())

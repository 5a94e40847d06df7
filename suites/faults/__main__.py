"""``python -m suites.faults``: what ``nox -s faults`` runs."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

from suites.faults.kinds import KINDS
from suites.faults.schedule import FAULTS
from suites.faults.session import Found, Session
from suites.faults.truth import count_right, make_data


def main() -> int:
    """Do runs until the time is over, print the table, and return 1 unless all was judged right."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the table is printed then
    begin, found = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        make_data(Path(name) / "data")
        session = Session(Path(name), count_right(Path(name) / "data"))
        if session.why_not_isolated:
            print(f"without namespaces: {session.why_not_isolated}")
        interrupted = 0
        try:
            for one in _runs(session, options):
                found.append(one)
                _tell(one, bool(options.seed))
        except KeyboardInterrupt:
            interrupted = 130
    _summarise(found, time.monotonic() - begin)
    judged = [one for one in found if one.result != "skipped"]
    if not (judged or interrupted):
        print("no run was judged, so nothing was proved")
    return interrupted or int(not judged or any(one.wrong for one in judged))


def _runs(session: Session, options: argparse.Namespace) -> Iterator[Found]:
    """Do so many runs at a time, and yield each when it is over."""
    seeds: Iterator[int] = itertools.count(options.first)
    if options.seed:
        seeds = iter(options.seed)
    elif options.runs is not None:
        seeds = itertools.islice(seeds, options.runs)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nox -s faults --", description=__doc__)
    parser.add_argument("--minutes", type=float, default=55.0, help="how long runs are begun")
    parser.add_argument("--runs", type=_count, help="how many runs there are at most")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first run")
    parser.add_argument("--seed", type=int, nargs="+", help="do these runs only, and tell all")
    parser.add_argument(
        "--jobs", type=_count, default=os.cpu_count() or 1, help="how many runs there are at a time"
    )
    return parser


def _count(text: str) -> int:
    """Return the number of an option that counts from 1 up."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is given, and it has to be 1 or more")
    return number


def _tell(one: Found, all_of_it: bool) -> None:
    """Print a run's line, and all that was seen of one with a violation or that was asked for."""
    result = "VIOLATION" if one.wrong else one.result
    print(f"seed {one.draw.seed}: {KINDS[one.draw.kind].name}: {one.draw.story()}: {result}"
          f" ({one.text})")  # fmt: skip
    for line in one.wrong:
        print(f"    {line}")
    if one.wrong or all_of_it:
        print(json.dumps(one.details, indent=4).replace("\\n", "\n        "))
    sys.stdout.flush()


def _summarise(found: list[Found], seconds: float) -> None:
    """Print how often each fault and command had each result, and the seeds of violations."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in found:
        result = "violation" if one.wrong else one.result
        result += f" ({one.text})" if result == "skipped" else ""
        for row in ((one.draw.fault, KINDS[one.draw.kind].what), ("all", "")):
            rows[row][result] += 1
    order = [*FAULTS, "all"]
    for (fault, what), counts in sorted(rows.items(), key=lambda r: (order.index(r[0][0]), r[0])):
        told = ", ".join(f"{number} {result}" for result, number in sorted(counts.items()))
        print(f"{fault:17}{what:9}{told}")
    bad = [one for one in found if one.wrong]
    for one in bad:
        print(f"violation: seed {one.draw.seed}: {one.wrong[0][:150]}")
    print(f"{len(found)} runs in {seconds / 60:.1f} minutes, {len(bad)} with a violation")
    if bad:
        print(f"again: nox -s faults -- --seed {bad[0].draw.seed}")


if __name__ == "__main__":
    sys.exit(main())

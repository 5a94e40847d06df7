"""Evaluations in leases whose ranks are killed at random moments.

``python -m suites.helpers.lost_ranks ranks 200`` tries so many seeds, from that of a third argument
on, and prints a line for each; ``… stop 1`` stops a leader, and ``… twice 1`` starts a rank twice.
It forks its ranks while it has one thread, which costs milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from disteval import Task
from disteval.evaluation.borrowed import run_leases
from disteval.leases import Lender, LenderThread
from disteval.metrics import Accuracy, BaseMetric, Mean
from disteval.world import control_directory
from disteval.world.channel.leader import Channel
from disteval.world.channel.link import Address, Link, connect, write_address

from suites.properties.cases import Entries

SIZE, BATCH = 200, 4
HOW = ("SIGKILL", "SIGSTOP", "exit", "exception")
SECONDS = 60.0
SILENCE = 15.0  # a frozen rank that holds the last lease, or computes, delays the end so long


def task(call: Any = lambda: None) -> Task:
    """Return a task whose model calls a function before each batch."""

    def predict(batch: Any) -> Any:
        call()
        time.sleep(0.002)
        return np.stack([batch, np.sin(batch)], axis=1)

    numbers = np.arange(SIZE)
    return Task(
        samples=(numbers, numbers % 2),
        predict=predict,
        metrics={"numbers": Entries(), "accuracy": Accuracy(counts=True), "mean": Mean()},
        update={"numbers": lambda outputs, _: (outputs[:, 0],), "mean": lambda o, _: (o[:, 1],)},
        batch_size=BATCH,
    )


def expected() -> dict[str, Any]:
    """Return the result of one rank that is alone."""
    return task().evaluate("non_dist").metrics


class Rank:
    """A rank in a fork of this process, which writes its result to a file."""

    def __init__(
        self,
        rank: int,
        directory: Path,
        results: Path,
        how: str = "",
        calls: int = 0,
        patience: float = SECONDS,
    ) -> None:
        self.rank, self.path = rank, results / f"{rank}.json"
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with suppress(BaseException):
                self._run(directory, how, calls, patience)
            os._exit(1)

    def _run(self, directory: Path, how: str, calls: int, patience: float) -> None:
        left = calls

        def call() -> None:
            nonlocal left
            left -= 1
            if left == 0 and how == "exit":
                os._exit(3)
            if left == 0 and how.startswith("stops "):
                os.kill(int(how.split()[1]), signal.SIGSTOP)
            if left == 0 and how == "exception":
                raise ValueError("at a random moment")

        try:
            link = Link(connect(directory, patience))
            link.report(self.rank)
            found: Any = run_leases(task(call), link).metrics
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        draft = self.path.with_suffix(".part")  # the rank may be killed while it writes
        draft.write_text(json.dumps(found))
        draft.rename(self.path)
        os._exit(0)

    def send(self, signal_name: str) -> None:
        os.kill(self.pid, signal.Signals[signal_name])

    def end(self) -> Any:
        """Return what the rank found, or None if it was lost; it is killed if it does not end."""
        deadline = time.monotonic() + SECONDS
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                self.send("SIGKILL")
                os.waitpid(self.pid, 0)
                return "it did not end"
            time.sleep(0.002)
        return json.loads(self.path.read_text()) if self.path.exists() else None


def lend(
    ledger: Path | None, directory: Path, expected: int, timeout: float = SECONDS
) -> tuple[Lender, LenderThread]:
    """Start a lender, and write its address to where the ranks look for it."""
    channel = Channel(expected, replaces=True)
    lender = Lender(ledger, expected=expected, timeout=timeout)
    write_address(directory, channel.listen(Address(None, folder=str(directory))))
    return lender, LenderThread(lender, channel, timeout)


def lose_ranks(seed: int, folder: Path) -> dict[str, Any]:
    """Evaluate with W ranks of which k are lost; return what happened and what they found."""
    draw = random.Random(seed)
    world = draw.randint(2, 6)
    losses = draw.sample(range(world), draw.randint(1, world - 1))
    plan = {rank: draw.choice(HOW) for rank in losses}
    # Three ranks that raise at one batch would end the evaluation, and rightly.
    for rank in [rank for rank in losses if plan[rank] == "exception"][2:]:
        plan[rank] = "exit"
    moments = sorted((draw.uniform(0, 0.25), rank) for rank in losses if plan[rank][0] == "S")
    directory = control_directory.create()
    ranks = [
        Rank(each, directory.path, folder, plan.get(each, ""), draw.randint(1, 8))
        for each in range(world)
    ]
    lender, thread = lend(None, directory.path, world, SILENCE)
    with thread:
        begin = time.monotonic()
        for moment, rank in moments:
            thread.wait(max(0.0, begin + moment - time.monotonic()))
            ranks[rank].send(plan[rank])
        ended = thread.wait(SECONDS)
        for rank in losses:
            if plan[rank] == "SIGSTOP":  # a stopped one goes on later, and finds the result
                ranks[rank].send("SIGCONT")
        found = {each.rank: each.end() for each in ranks}
        report, counts = lender.report, lender.counts
    directory.remove()
    return {
        "plan": plan, "ended": ended, "found": found, "done": counts.done, "lost": report.lost,
        "failed": report.failed, "repeated": report.repeated, "copies": report.copies,
    }  # fmt: skip


def stop_leader(_: int, folder: Path) -> dict[str, Any]:
    """Stop the leader while its rank computes; return what the rank says, and after how long."""
    directory = control_directory.create()
    leader = os.fork()
    if leader == 0:
        with suppress(BaseException):
            lend(None, directory.path, 1, 1.0)[1].wait(SECONDS)
        os._exit(1)
    begin = time.monotonic()
    found = Rank(0, directory.path, folder, f"stops {leader}", 3).end()
    os.kill(leader, signal.SIGKILL)
    os.waitpid(leader, 0)
    directory.remove()
    return {"found": {0: found}, "seconds": time.monotonic() - begin}


def start_twice(_: int, folder: Path) -> dict[str, Any]:
    """Start two processes as rank 0 at once; return what each found."""
    directory = control_directory.create()
    folders = [folder / "first", folder / "second"]
    for each in folders:
        each.mkdir()
    ranks = [Rank(0, directory.path, each) for each in folders]
    with lend(None, directory.path, 1, SILENCE)[1] as thread:
        thread.wait(SECONDS)
        found = dict(enumerate(rank.end() for rank in ranks))
    directory.remove()
    return {"found": found}


WAYS = {"ranks": lose_ranks, "stop": stop_leader, "twice": start_twice}


def main(what: str, seeds: int, first: int = 0) -> None:
    """Try some seeds, and print a line for each."""
    right = expected()
    for seed in range(first, first + seeds):
        folder = Path(tempfile.mkdtemp(prefix="leases-"))
        try:
            found = WAYS[what](seed, folder)
        finally:
            shutil.rmtree(folder)
        values = found.pop("found").values()
        given = [each for each in values if isinstance(each, dict)]
        found["right"] = bool(given) and all(each == right for each in given)
        found["other"] = [each for each in values if isinstance(each, str)]
        print(json.dumps({"seed": seed, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

"""What the ledger has said to be written survives, and what it can't use it refuses by name."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from disteval import get_dist_backend
from disteval.coverage import Certificate, add_certificates, certify
from disteval.errors import LedgerError, UsageError
from disteval.leases import Book, Committed, Lease, Ledger, rows
from disteval.leases.ledger import NAME
from disteval.metrics import ConfusionMatrix, MetricGroup
from disteval.metrics.totals import (
    Total,
    add_totals,
    compute_totals,
    pack_totals,
    take_totals,
    unpack_totals,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from suites.helpers.namespaces import run_alone

SETTINGS = {"task": "resnet18", "size": 10_000, "metrics": ["accuracy"], "seed": None}
FILES = {"part.jsonl": "ab12"}


def committed(number: int, start: int, stop: int) -> Committed:
    totals = f"totals of {start}".encode()
    return Committed(Lease(number, start, stop), 1, totals, Certificate(9, (1 << 64) - 1), FILES)


def test_what_was_committed_is_found_again_in_order(tmp_path: Path) -> None:
    later, earlier = committed(0, 5, 9), committed(1, 0, 5)
    ledger = Ledger(tmp_path / "new" / "folder", SETTINGS)
    ledger.commit(*later)
    ledger.commit(*earlier)
    ledger.close()
    again = Ledger(tmp_path / "new" / "folder", SETTINGS)
    assert [*again.committed()] == [earlier, later]
    assert again.result is None
    again.close()


def test_a_book_goes_on_from_a_ledger() -> None:
    ledger = Ledger(None, SETTINGS)
    ledger.commit(*committed(7, 1, 3))
    book = Book(4, committed=[found.lease for found in ledger.committed()])
    lent = [book.ask(rank, 0.0) for rank in range(3)]
    assert lent[:2] == [(8, 0, 1), (9, 3, 4)]
    assert lent[2] in lent[:2]


def test_a_finished_ledger_has_its_result(tmp_path: Path) -> None:
    for _ in range(2):  # a leader that was killed after it had finished finishes once more
        ledger = Ledger(tmp_path, SETTINGS)
        ledger.finish(b"accuracy")
        ledger.close()
    ledger = Ledger(tmp_path, SETTINGS)
    assert ledger.result == b"accuracy"
    ledger.close()


def write_until_killed(folder: Path, told: int) -> None:
    """Commit leases of one unit each, and write how many are there after each of them."""
    ledger = Ledger(folder, SETTINGS)
    for start in range(len([*ledger.committed()]), 10_000):
        totals = b"%d" % start * 3000
        ledger.commit(Lease(start, start, start + 1), 1, totals, Certificate(1, start), {})
        os.write(told, b"%d\n" % (start + 1))


def test_a_writer_that_is_killed_loses_nothing_that_it_had_committed(tmp_path: Path) -> None:
    """It is killed while it commits, again and again, and nothing is there in part either."""
    seed = random.randrange(1 << 32)
    drawn, told = random.Random(seed), 0
    for turn in range(25):
        said, says = os.pipe()
        child = os.fork()
        if not child:
            try:
                write_until_killed(tmp_path, says)
            finally:
                os._exit(1)
        os.close(says)
        with open(said) as lines:
            for _ in range(drawn.randrange(1, 20)):
                told = int(lines.readline())
            time.sleep(drawn.random() / 500)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told = int((["", *lines.read().split()])[-1] or told)
        ledger = Ledger(tmp_path, SETTINGS)
        found = [*ledger.committed()]
        ledger.close()
        assert len(found) in (told, told + 1), f"seed {seed}, turn {turn}"
        for start, one in enumerate(found):
            totals, certificate = b"%d" % start * 3000, Certificate(1, start)
            assert one == (Lease(start, start, start + 1), 1, totals, certificate, {}), seed


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"size": 9}, ["10000", "9"]),
        ({"seed": 1, "metrics": []}, ["seed", "accuracy"]),
        ({"late": True}, ["late", "True"]),
    ],
)
def test_another_evaluation_is_refused_by_each_setting_that_differs(
    tmp_path: Path, other: dict[str, object], said: list[str]
) -> None:
    Ledger(tmp_path, SETTINGS).close()
    with pytest.raises(UsageError) as caught:
        Ledger(tmp_path, SETTINGS | other)
    assert all(each in str(caught.value) for each in said)
    Ledger(tmp_path, SETTINGS).close()  # the lock was released, and nothing was changed


def test_a_setting_that_is_left_out_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path, SETTINGS).close()
    with pytest.raises(UsageError, match=r"seed.*None"):
        Ledger(tmp_path, {name: SETTINGS[name] for name in list(SETTINGS)[:-1]})


def test_two_leaders_are_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, SETTINGS)
    with pytest.raises(UsageError, match=str(os.getpid())):
        Ledger(tmp_path, SETTINGS)
    (tmp_path / ".disteval.lock").unlink()  # as a network file system without locks would do
    with pytest.raises(UsageError, match="another process"):
        Ledger(tmp_path, SETTINGS)
    ledger.commit(*committed(0, 0, 1))
    ledger.close()


def test_a_unit_is_never_committed_twice() -> None:
    ledger = Ledger(None, SETTINGS)
    first = committed(0, 4, 8)
    ledger.commit(*first)
    for start, stop in [(4, 8), (0, 5), (7, 9), (5, 6), (0, 99)]:
        with pytest.raises(LedgerError, match="twice"):
            ledger.commit(*committed(1, start, stop))
    neighbours = [committed(1, 3, 4), committed(2, 8, 9)]
    for neighbour in neighbours:
        ledger.commit(*neighbour)
    assert [*ledger.committed()] == [neighbours[0], first, neighbours[1]]


def test_leases_are_committed_together_or_not_at_all(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, SETTINGS)
    with ledger.together():
        ledger.commit(*committed(0, 0, 1))
        ledger.commit(*committed(1, 1, 2))
    with pytest.raises(KeyboardInterrupt), ledger.together():
        ledger.commit(*committed(2, 2, 3))
        raise KeyboardInterrupt
    ledger.close()
    again = Ledger(tmp_path, SETTINGS)
    assert [found.lease.start for found in again.committed()] == [0, 1]
    again.close()


CLASSES = 100
IN_ORDER = [*range(0, 60, 3)]


def confusion(lease: Lease, samples: int) -> bytes:
    """Return the totals of a lease as a rank commits them."""
    drawn = np.random.default_rng(lease.start).integers(0, CLASSES, (2, samples))
    metrics = {"confusion": ConfusionMatrix(CLASSES)}
    MetricGroup(metrics, get_dist_backend("non_dist")).reset_to_sums()
    metrics["confusion"].add(*drawn)
    totals = take_totals(metrics, lease.start)
    return pack_totals(totals, {lease.start: samples})


def computed(ledger: Ledger) -> tuple[Any, dict[int, int]]:
    """Return the confusion matrix of all leases, and their notes."""
    metrics = {"confusion": ConfusionMatrix(CLASSES)}
    totals, notes = {"confusion": Total(0, None, [])}, dict[int, int]()
    for each in ledger.committed():
        found, note = unpack_totals(each.totals)
        totals, notes = add_totals(totals, found), {**notes, **(note or {})}
    return compute_totals(metrics, totals)["confusion"]["matrix"].tolist(), notes


@settings(max_examples=20, deadline=None)
@example(starts=IN_ORDER, missing=0, samples=3000)
@given(
    starts=st.permutations(IN_ORDER),
    missing=st.integers(0, 3),
    samples=st.sampled_from([30, 3000]),  # sums that are sparse, and those that are not
)
def test_totals_that_take_much_are_added_up_and_change_nothing(
    starts: list[int], missing: int, samples: int
) -> None:
    wholes = [Lease(number, at, at + 3) for number, at in enumerate(starts[missing:])]
    found = []
    for bound in (1 << 40, 100_000):
        with patch.object(rows, "FOLD_BYTES", bound):
            ledger = Ledger(None, SETTINGS)
            for lease in wholes:
                files = {f"part {lease.start}": "ab12"}
                certificate = certify(np.arange(lease.start, lease.stop))
                ledger.commit(lease, 1, confusion(lease, samples), certificate, files)
            kept = list(ledger.committed())
            found.append((
                computed(ledger),
                sum(each.leases for each in kept), max(each.lease.number for each in kept),
                {name for each in kept for name in each.files},
                add_certificates([each.certificate for each in kept]),
                sorted(unit for each in kept for unit in range(each.lease.start, each.lease.stop)),
            ))  # fmt: skip
            sizes = sum(len(each.totals) for each in kept)
            book = Book(60, committed=[each.lease for each in kept])
            assert book.counts.done == 3 * len(wholes)
            ledger.close()
    assert found[0] == found[1]
    if starts[missing:] == IN_ORDER and samples == 3000:
        assert sizes < 400_000  # of 20 leases with 80 kB each


def test_totals_that_are_not_sums_are_kept_as_they_are() -> None:
    with patch.object(rows, "FOLD_BYTES", 10):
        ledger = Ledger(None, SETTINGS)
        leases = [committed(number, number, number + 1) for number in range(9)]
        for each in leases:
            ledger.commit(*each)
        assert [*ledger.committed()] == leases


def test_totals_that_would_be_too_large_for_a_row_or_a_message_are_kept_as_they_are() -> None:
    with patch.object(rows, "FOLD_BYTES", 10), patch.object(rows, "_MOST_BYTES", 1000):
        ledger = Ledger(None, SETTINGS)
        leases = [Lease(number, at, at + 3) for number, at in enumerate(IN_ORDER)]
        for lease in leases:
            ledger.commit(lease, 1, confusion(lease, 3000), Certificate(3000, 0), {})
        assert [each.lease for each in ledger.committed()] == leases


def test_a_file_that_is_no_ledger_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"predictions, " * 999)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="is not a ledger"):
        Ledger(tmp_path, SETTINGS)
    assert path.read_bytes() == b"predictions, " * 999


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / NAME) as other:
        other.execute("CREATE TABLE leases (flat TEXT)")
    other.close()
    with pytest.raises(UsageError, match="another program"):
        Ledger(tmp_path, SETTINGS)


def test_a_ledger_of_a_later_version_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path, SETTINGS).close()
    with sqlite3.connect(tmp_path / NAME) as file:
        file.execute("PRAGMA user_version = 3")
    file.close()
    with pytest.raises(UsageError, match=r"version 3.*2"):
        Ledger(tmp_path, SETTINGS)


def test_a_ledger_that_others_can_write_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path, SETTINGS).close()
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    (tmp_path / NAME).chmod(0o622)
    with pytest.raises(UsageError, match="622"):
        Ledger(tmp_path, SETTINGS)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file can't"):
        Ledger(tmp_path / "file", SETTINGS)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, SETTINGS)
    ledger.commit(*committed(0, 0, 1))
    ledger.finish(b"the result of it")
    ledger.close()
    whole = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(whole.replace(b"totals of 0", b"totals of 1"))
    ledger = Ledger(tmp_path, SETTINGS)
    with pytest.raises(LedgerError, match="lease 0"):
        list(ledger.committed())
    ledger.close()
    (tmp_path / NAME).write_bytes(whole.replace(b"the result", b"a result, "))
    ledger = Ledger(tmp_path, SETTINGS)
    with pytest.raises(LedgerError, match="result"):
        _ = ledger.result
    ledger.close()


FILLER = """
import resource, sys
from disteval.coverage import Certificate
from disteval.errors import LedgerError
from disteval.leases import Lease, Ledger

ledger = Ledger(sys.argv[1], {})
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
done = 0
try:
    while done < 1000:
        ledger.commit(Lease(done, done, done + 1), 1, bytes(10_000), Certificate(1, done), {})
        done += 1
except LedgerError as error:
    print(error)
ledger.close()
print(done)
"""


def check_full(printed: str, ledger: Ledger) -> None:
    """Check what `FILLER` says, and that the next run finds what was committed."""
    said, done = printed.splitlines()
    assert "written" in said
    assert "disk is full" in said
    assert 5 < int(done) < 1000
    assert [found.lease.start for found in ledger.committed()] == [*range(int(done))]
    ledger.commit(*committed(1000, 1000, 1001))
    ledger.close()


def test_a_file_that_may_not_grow_is_named_and_what_was_committed_stays(tmp_path: Path) -> None:
    words = [sys.executable, "-c", FILLER, str(tmp_path), "limit"]
    printed = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    check_full(printed, Ledger(tmp_path, {}))


ON_A_SMALL_DISK = """
import shutil, subprocess, sys
filler, folder = sys.argv[1:]
subprocess.run(
    ["mount", "-t", "tmpfs", "-o", "size=400k,mode=0700", "none", folder + "/disk"], check=True
)
subprocess.run([sys.executable, "-c", filler, folder + "/disk", ""], check=True)
shutil.copytree(folder + "/disk", folder + "/copy")
"""


def test_a_full_disk_is_named_and_what_was_committed_stays(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    printed = run_alone(ON_A_SMALL_DISK, FILLER, str(tmp_path), folder=tmp_path)
    assert "disk is full" in printed
    check_full(printed, Ledger(tmp_path / "copy", {}))

"""What the ledger has said to be written survives, and what it can't use it refuses by name."""

import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from disteval.errors import LedgerError, UsageError
from disteval.metrics import ConfusionMatrix
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.ledger import (
    Ledger,
    LedgerLog,
    Part,
    certify,
    compute_totals,
    ledger,
    pack_totals,
    packed_ids,
    take_totals,
    unpacked_ids,
)

SETTINGS = {"task": "resnet18", "size": "10000", "metrics": "['accuracy']", "seed": "None"}


def part(start: int, stop: int, states: bytes = b".states", rank: int = 0) -> Part:
    ids = np.arange(start, stop)
    return Part(rank, (packed_ids(ids),), certify(ids), states)


def starts_of(parts: Any) -> list[int]:
    return [int(unpacked_ids(each.ids)[0]) for each in parts]


def stored_in(folder: Path) -> list[Part]:
    """Return what a folder has; the next run finds the same."""
    found = Ledger(folder, SETTINGS)
    found.close()
    return found.stored


def test_what_was_committed_is_found_again_in_the_next_runs(tmp_path: Path) -> None:
    parts = [part(5, 9), part(0, 5)]
    for run in range(3):
        found = Ledger(tmp_path / "new" / "folder", SETTINGS)
        assert (found.stored, found.result) == ([] if not run else parts, None)
        for each in parts if not run else ():
            found.commit(each)
        found.close()
    assert len([*(tmp_path / "new" / "folder").iterdir()]) == 1


def test_a_finished_ledger_has_its_result(tmp_path: Path) -> None:
    for _ in range(2):  # a leader that was killed after it had finished finishes once more
        found = Ledger(tmp_path, SETTINGS)
        found.finish(b"accuracy")
        found.close()
    found = Ledger(tmp_path, SETTINGS)
    assert found.result == b"accuracy"
    found.close()


def test_each_process_of_a_run_writes_its_own_file(tmp_path: Path) -> None:
    found = Ledger(tmp_path, SETTINGS)
    logs = [LedgerLog(found.run) for _ in range(3)]
    for rank, log in enumerate(logs):
        log.check_place()
        log.commit(part(10 * rank, 10 * rank + 5, rank=rank))
    found.commit(part(90, 95))
    for each in (*logs, found):
        each.close()
    assert sorted(starts_of(stored_in(tmp_path))) == [0, 10, 20, 90]


def test_what_a_process_of_an_earlier_run_writes_does_not_count(tmp_path: Path) -> None:
    found = Ledger(tmp_path, SETTINGS)
    lost, new = LedgerLog(found.run), LedgerLog(found.run)
    lost.commit(part(0, 5))
    found.close()
    second = Ledger(tmp_path, SETTINGS)
    lost.commit(part(5, 9))
    new.commit(part(9, 12))  # to a file that was not there when the second run began
    second.commit(part(5, 7))
    second.close()
    assert starts_of(stored_in(tmp_path)) == [0, 5]
    assert sum(each.certificate.counted for each in stored_in(tmp_path)) == 7


def write_until_killed(folder: Path, told: int) -> None:
    """Commit parts of one sample each, and write how many are there after each of them."""
    found = Ledger(folder, SETTINGS)
    for start in range(len(found.stored), 10_000):
        found.commit(part(start, start + 1, b".%d" % start * 3000))
        os.write(told, b"%d\n" % (start + 1))


def test_a_writer_that_is_killed_loses_nothing_that_it_had_committed(tmp_path: Path) -> None:
    """It is killed while it commits, again and again, and nothing is there in part either."""
    seed = random.randrange(1 << 32)
    drawn, told = random.Random(seed), 0
    for turn in range(15):
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
        found = stored_in(tmp_path)
        assert len(found) in (told, told + 1), f"seed {seed}, turn {turn}"
        expected = [part(at, at + 1, b".%d" % at * 3000) for at in range(len(found))]
        assert found == expected, f"seed {seed}, turn {turn}"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_file_that_ends_or_differs_anywhere_has_what_stands_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    parts = [part(at, at + 3) for at in range(0, 30, 3)]
    found = Ledger(folder, SETTINGS)
    for each in parts:
        found.commit(each)
    found.finish(b"the result")
    found.close()
    (path,) = folder.glob("ledger-*.log")
    whole = path.read_bytes()
    at = data.draw(st.integers(0, 9_999)) * len(whole) // 10_000  # whose length varies
    if data.draw(st.booleans()):
        path.write_bytes(whole[:at])
    else:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
    try:
        again = Ledger(folder, SETTINGS)
    except UsageError as error:  # its first line is another one
        assert str(path) in str(error)
        return
    assert again.stored == parts[: len(again.stored)]
    assert again.result in (None, b"the result")
    assert again.result is None or again.stored == parts
    again.close()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_run_that_is_killed_while_it_begins_leaves_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Its file has all that earlier runs have left, and counts when it is whole."""
    folder, parts = tmp_path_factory.mktemp("ledger"), [part(at, at + 3) for at in range(0, 30, 3)]
    first = Ledger(folder, SETTINGS)
    other = LedgerLog(first.run)
    for turn, each in enumerate(parts):
        (other if turn % 2 else first).commit(each)
    first.close()
    other.close()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 2
    Ledger(folder, SETTINGS).close()
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, 10_000)) * len(whole) // 10_000])
    for earlier, content in before.items():
        earlier.touch(0o600)
        earlier.write_bytes(content)
    assert sorted(starts_of(stored_in(folder))) == [*range(0, 30, 3)]


def test_damage_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Ledger(tmp_path, SETTINGS)
    found.commit(part(0, 5))
    found.commit(part(5, 9, b".other"))
    found.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b".other", b".0ther"))
    with caplog.at_level(logging.WARNING):
        assert starts_of(stored_in(tmp_path)) == [0]
    assert str(path) in caplog.text


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (SETTINGS | {"size": "9"}, ["10000", "9"]),
        (SETTINGS | {"seed": "1", "metrics": "[]"}, ["seed", "accuracy"]),
        (SETTINGS | {"late": "True"}, ["late", "True"]),
        ({name: SETTINGS[name] for name in list(SETTINGS)[:-1]}, ["seed", "None"]),
    ],
)
def test_another_evaluation_is_refused_by_each_setting_that_differs(
    tmp_path: Path, other: dict[str, str], said: list[str]
) -> None:
    Ledger(tmp_path, SETTINGS).close()
    with pytest.raises(UsageError) as caught:
        Ledger(tmp_path, other)
    assert all(each in str(caught.value) for each in said)
    Ledger(tmp_path, SETTINGS).close()  # the lock was released, and nothing was changed


def test_two_leaders_are_refused(tmp_path: Path) -> None:
    found = Ledger(tmp_path, SETTINGS)
    with pytest.raises(UsageError, match=str(os.getpid())):
        Ledger(tmp_path, SETTINGS)
    found.commit(part(0, 1))
    found.close()
    assert starts_of(stored_in(tmp_path)) == [0]


def test_a_part_of_samples_that_another_part_has_does_not_count(tmp_path: Path) -> None:
    """As of two leaders on a network file system that has no locks."""
    found = Ledger(tmp_path, SETTINGS)
    for start, stop in [(4, 8), (7, 9), (8, 9)]:
        found.commit(part(start, stop))
    found.close()
    assert starts_of(stored_in(tmp_path)) == [4, 8]


def test_parts_are_written_together(tmp_path: Path) -> None:
    found = Ledger(tmp_path, SETTINGS)
    with found.log.together():
        found.commit(part(0, 1))
        found.commit(part(1, 2))
    found.close()
    assert starts_of(stored_in(tmp_path)) == [0, 1]


CLASSES = 100
IN_ORDER = [*range(0, 60, 3)]


def confusion(start: int, samples: int) -> bytes:
    """Return the states of a part as a rank commits them."""
    drawn = np.random.default_rng(start).integers(0, CLASSES, (2, samples))
    metrics = {"confusion": ConfusionMatrix(CLASSES)}
    metrics["confusion"].reset()
    metrics["confusion"].add(*drawn)
    return pack_totals(take_totals(metrics, start))


def computed(parts: Any) -> Any:
    """Return the confusion matrix of all parts."""
    metrics = {"confusion": ConfusionMatrix(CLASSES)}
    states = [each.states for each in parts]
    return compute_totals(metrics, states)["confusion"]["matrix"].tolist()


@settings(max_examples=20, deadline=None)
@given(
    starts=st.permutations(IN_ORDER),
    missing=st.integers(0, 3),
    samples=st.sampled_from([30, 3000]),  # sums that are sparse, and those that are not
)
def test_states_that_take_much_are_added_up_and_change_nothing(
    starts: list[int], missing: int, samples: int
) -> None:
    found = []
    for bound in (1 << 40, 100_000):
        with patch.object(ledger, "FOLD_BYTES", bound):
            kept = Ledger(None, SETTINGS)
            for start in starts[missing:]:
                kept.commit(part(start, start + 3, confusion(start, samples)))
            parts, _ = kept.some()
            ids = np.concatenate([unpacked_ids(each.ids) for each in parts])
            counts = sum(each.parts for each in parts)
            found.append((computed(parts), sorted(ids.tolist()), counts))
            size = sum(len(each.states) for each in parts)
    assert found[0] == found[1]
    assert samples < 3000 or size < 400_000  # of up to 20 parts with 80 kB each


def test_states_that_are_not_sums_are_kept_as_they_are() -> None:
    with patch.object(ledger, "FOLD_BYTES", 10):
        kept, parts = Ledger(None, SETTINGS), [part(at, at + 1) for at in range(9)]
        for each in parts:
            kept.commit(each)
        assert kept.some() == (parts, True)


def test_a_file_that_is_no_ledger_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger-000001-0123456789abcdef.log"
    path.write_bytes(b"predictions, " * 999)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="not a ledger"):
        Ledger(tmp_path, SETTINGS)
    assert path.read_bytes() == b"predictions, " * 999


def test_a_ledger_of_a_later_version_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path, SETTINGS).close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b"ledger 5", b"ledger 6", 1))
    with pytest.raises(UsageError, match=r"version 6.*5"):
        Ledger(tmp_path, SETTINGS)


def test_a_ledger_that_others_can_write_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path, SETTINGS).close()
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o622)
    with pytest.raises(UsageError, match="622"):
        Ledger(tmp_path, SETTINGS)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file can't"):
        Ledger(tmp_path / "file", SETTINGS)


FILLER = """
import resource, sys
from disteval.errors import LedgerError
from suites.resume.test_ledger import SETTINGS, Ledger, part

ledger = Ledger(sys.argv[1], SETTINGS)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
done = 0
try:
    while done < 1000:
        ledger.commit(part(done, done + 1, b"." * 10_000))
        done += 1
except LedgerError as error:
    print(error)
ledger.close()
print(done)
"""


def test_a_full_disk_is_named_and_what_was_committed_stays(tmp_path: Path) -> None:
    words = [sys.executable, "-c", FILLER, str(tmp_path)]
    printed = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    said, done = printed.splitlines()
    assert "written" in said and "disk is full" in said
    assert 5 < int(done) < 1000
    assert starts_of(stored_in(tmp_path)) == [*range(int(done))]


def test_a_file_whose_beginning_does_not_fit_is_begun_anew(tmp_path: Path) -> None:
    """What comes after a torn beginning would not count, so nothing is left of it."""
    found = Ledger(tmp_path, SETTINGS)
    log, limits = LedgerLog(found.run), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, limits[1]))
    try:
        with pytest.raises(LedgerError, match="disk is full"):
            log.commit(part(0, 5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.commit(part(5, 9))
    for each in (log, found):
        each.close()
    assert starts_of(stored_in(tmp_path)) == [5]

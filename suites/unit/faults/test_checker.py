"""The checker of the fault session notices what it is there for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suites.faults import files
from suites.faults.checker import judge
from suites.faults.kinds import KINDS, Kind
from suites.faults.schedule import FAULTS, Draw, draw

TRUTH = {"top1": 240, "top3": 280, "size": 301, "weights": {"best": "b", "last": "l"}}
EVAL = Kind("eval", "torch_cpu", "local", 2)
CHECK = Kind("check", "mpi4py", "mpirun", 2)
FIT = Kind("fit", "torch_cpu", "local", 2)
KILL = Draw(1, 0, "kill", "rank", 1, "first rank", 0.0, 0.0, {"with": "SIGKILL"}, False)
NAMED = "disteval eval: rank 1 was lost (killed by SIGKILL)\n"
REPORT = {"correct": {"top1": 240, "top3": 280}, "size": 301, "evaluated": 301}
BROKEN = {"rules": [{"id": "2.1", "outcome": "failed", "message": "lost"}]}


def found(status: int | None, *, err: str = "", **others: Any) -> dict[str, Any]:
    ending = {"status": status, "out": "(240 of 301)", "err": err, "gone": 9.0, "left": []}
    ending["events"] = {"directory": 0.5}
    whole = {"report": "absent", "values": None, "damaged": [], "left": []}
    return {"ending": ending | others.pop("ending", {}), **whole, **others}


def test_a_right_result_and_a_named_error_are_accepted() -> None:
    right = found(0, report="whole", values=REPORT)
    assert judge(EVAL, KILL, right, TRUTH) == ("right", [])
    assert judge(EVAL, KILL, found(1, err=NAMED), TRUTH) == ("named error", [])


WRONG = {
    "the wrong number": (EVAL, found(0, report="whole", values=REPORT | {"evaluated": 300})),
    "success, and the report is old": (EVAL, found(0, report="old")),
    "did not print": (
        EVAL,
        found(0, report="whole", values=REPORT, ending={"out": ""}),
    ),
    "exit status 3": (EVAL, found(3, err=NAMED)),
    "no named error": (EVAL, found(1, err="Killed\n")),
    "no named error: 'disteval eval: unexpected": (
        EVAL,
        found(1, err="disteval eval: unexpected OSError: 28\n"),
    ),
    "a raw traceback": (
        EVAL,
        found(
            1,
            err=f"{NAMED}Traceback (most recent call last):\n"
            '  File "harness/disteval/worlds/group.py", line 1, in close\nOSError: 28\n',
        ),
    ),
    "running after": (EVAL, found(1, err=NAMED, ending={"left": ["12 S rank 1"]})),
    "did not end": (EVAL, found(None)),
    "left: tmp/disteval-1": (EVAL, found(1, err=NAMED, left=["tmp/disteval-1 ()"])),
    "is half-written": (EVAL, found(1, err=NAMED, damaged=["page.html is half-written"])),
    "is called broken": (CHECK, found(1, report="whole", values=BROKEN)),
    "other weights": (FIT, found(0, report="whole", weights={"best": "b", "last": "other"})),
    "does not resume": (
        FIT,
        found(
            1,
            err="disteval fit: rank 1 was lost",
            resume={"status": 2, "err": ""},
            weights={"best": "b", "last": "l"},
            **{"damaged after resume": []},
        ),
    ),
}


@pytest.mark.parametrize("violation", WRONG)
def test_what_is_wrong_is_noticed(violation: str) -> None:
    kind, seen = WRONG[violation]
    _, wrong = judge(kind, KILL, seen, TRUTH)
    assert any(violation in each for each in wrong), wrong


def test_half_written_files_are_noticed(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + b"1234"
    for name, content in {
        "report.json": b'{"kind": "ev',
        "page.html": b"<html><body>",
        "best.safetensors": whole[:-1],
        "epoch_1.pt": b"PK\3\4",
        "report.json.part": b"{",
    }.items():
        (tmp_path / name).write_bytes(content)
        [told] = files.damaged_outputs(tmp_path)
        assert told.startswith(name)
        (tmp_path / name).unlink()
    (tmp_path / "best.safetensors").write_bytes(whole)
    (tmp_path / "report.json").write_text("{}")
    assert files.damaged_outputs(tmp_path) == []


def test_a_seed_always_draws_the_same_run_and_every_fault_is_drawn() -> None:
    drawn = [draw(seed) for seed in range(400)]
    assert drawn == [draw(seed) for seed in range(400)]
    assert {one.fault for one in drawn} == set(FAULTS)
    assert {one.kind for one in drawn} == set(range(len(KINDS)))

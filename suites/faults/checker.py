"""The checker: what may come of a run with a fault, and what may not."""

from __future__ import annotations

import re
from typing import Any

from suites.faults.kinds import Kind
from suites.faults.schedule import Draw
from suites.faults.world_program import total_of

_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ ].*\n)*(.*)$", re.MULTILINE)
_OURS = re.compile(r'File ".*(disteval|harness)')
_IMPORT = "in <module>"  # the line of a traceback that says that a module is being imported
_NOT_JUDGED = "; not judged: | could not be judged by "
_NAMED = r"^(\[rank \d+\] )?disteval {}: (?!unexpected )\S"


def judge(
    kind: Kind, draw: Draw | None, found: dict[str, Any], truth: dict[str, Any]
) -> tuple[str, list[str]]:
    """Return ``right`` or ``named error``, and what is wrong about the run."""
    ending = found["ending"]
    wrong = [f"running after {ending['gone']:.0f} s: {each}" for each in ending["left"]]
    if ending["status"] is None:
        wrong.append(f"the command did not end within {ending['gone']:.0f} s")
    wrong += found["damaged"] if draw is None or not _writer_killed(draw) else _whole_only(found)
    wrong += _left(kind, draw, found)
    killed = _command_killed(kind, draw, ending["status"])
    if ending["status"] == 0:
        wrong += _wrong_success(kind, found, truth)
    elif not killed and ending["status"] is not None:
        wrong += _wrong_failure(kind, draw, ending)
        if kind.backend == "leases" and draw is not None and draw.whom == "rank":
            wrong.append("one lost rank ended an evaluation in leases")
    if found["report"] == "whole" and kind.what in ("eval", "check"):
        wrong += _wrong_values(kind, found["values"], truth, draw)
    if kind.what == "fit":
        wrong += _wrong_training(found, truth)
    wrong += _tracebacks(kind, draw, ending)
    if ending["status"] == 0:
        return "right", wrong
    return ("killed" if killed else "named error"), wrong


def _writer_killed(draw: Draw) -> bool:
    return draw.fault in ("kill", "stop")


def _whole_only(found: dict[str, Any]) -> list[str]:
    """Return what is damaged; a process that was killed may leave a file under another name."""
    return [each for each in found["damaged"] if " was left (" not in each]


def _command_killed(kind: Kind, draw: Draw | None, status: int | None) -> bool:
    """Whether the command was ended from outside, so that it can't have said anything."""
    if draw is None or status is None:
        return False
    if kind.outer and draw.fault == "stop" and draw.whom == "rank":
        return False
    # The user's launcher ends the leader when it has lost a rank.
    return draw.fault in ("kill", "stop") and (status < 0 or kind.outer)


def _left(kind: Kind, draw: Draw | None, found: dict[str, Any]) -> list[str]:
    if not found["left"]:
        return []
    if draw is not None and (kind.outer or draw.whom == "leader"):
        # Nobody was there to remove it, so the next start does.
        after = found["left after sweep"]
        return [f"left also after the next start: {each}" for each in after]
    return [f"left: {each}" for each in found["left"]]


def _wrong_success(kind: Kind, found: dict[str, Any], truth: dict[str, Any]) -> list[str]:
    out = found["ending"]["out"]
    if kind.what == "World":
        right = " ".join(["totals", *[str(total_of(kind.world_size))] * kind.world_size])
        return [] if out.strip() == right else [f"success, and printed {out[-100:]!r}"]
    wrong = [] if found["report"] == "whole" else [f"success, and the report is {found['report']}"]
    if kind.what == "eval":
        right = f"({truth['top1']} of {truth['size']})"
        wrong += [] if right in out else [f"success, and did not print {right}: {out[-200:]!r}"]
    return wrong


def _wrong_values(
    kind: Kind, values: dict[str, Any], truth: dict[str, Any], draw: Draw | None
) -> list[str]:
    if kind.what == "eval":
        got = {**values["correct"], "size": values["size"], "evaluated": values["evaluated"]}
        right = {
            "top1": truth["top1"], "top3": truth["top3"],
            "size": truth["size"], "evaluated": truth["size"],
        }  # fmt: skip
        return [] if got == right else [f"the wrong number: {got} for {right}"]
    if draw is not None and draw.fault == "lost connection" and not draw.detail["for"]:
        return []  # it can't be told from a backend that is broken
    failed = [rule for rule in values["rules"] if rule["outcome"] == "failed"]
    return [
        f"a correct backend is called broken: rule {rule['id']}: {rule['message'][:300]}"
        for rule in failed
    ]


def _wrong_failure(kind: Kind, draw: Draw | None, ending: dict[str, Any]) -> list[str]:
    """Return what is wrong about the exit status and the sentence of a command that failed."""
    status, err = ending["status"], ending["err"]
    if draw is None or draw.fault in ("none", "pause", "slow", "clock jump"):
        return [f"exit status {status} without a reason to fail: {err[-600:]!r}"]
    if _interrupted_imports(draw, ending):
        return []
    if kind.outer:
        # A launcher that is interrupted, or without a connection, ends the leader.
        heard = draw.fault in ("stop", "full disk") and "first rank" in ending["events"]
        return [] if not heard or _is_named(kind, ending) else [_unnamed(err)]
    allowed = {1}
    if kind.what == "check" or draw.fault == "full disk":
        allowed = {1, 2}
    if kind.what == "check" and draw.fault != "lost connection":
        allowed = {2}
    if draw.fault == "Ctrl-C":
        if status == -2 and not err.strip():  # before Python runs, or after all is done
            return []
        allowed = {130, -2} if kind.what == "World" else {130}  # which a shell calls 130, too
    wrong = [] if status in allowed else [f"exit status {status}, not {sorted(allowed)}"]
    return wrong if _is_named(kind, ending) else [*wrong, _unnamed(err)]


def _is_named(kind: Kind, ending: dict[str, Any]) -> bool:
    """Whether a command that failed has said why in a sentence of its own."""
    err = ending["err"]
    if kind.what == "World":
        return "disteval.errors." in err or "KeyboardInterrupt" in err.rstrip().rpartition("\n")[2]
    if kind.what == "check" and re.search(_NOT_JUDGED, ending["out"]):  # the reason is in the table
        return True
    return bool(re.search(_NAMED.format(kind.what), err, re.MULTILINE))


def _unnamed(err: str) -> str:
    return f"no named error: {err[-600:]!r}"


def _interrupted_imports(draw: Draw | None, ending: dict[str, Any]) -> bool:
    """Whether Ctrl-C came while Python imported the command, which can't say anything then."""
    begun = "directory" in ending["events"]
    return draw is not None and draw.fault == "Ctrl-C" and not begun and _IMPORT in ending["err"]


def _wrong_training(found: dict[str, Any], truth: dict[str, Any]) -> list[str]:
    wrong = []
    if resume := found.get("resume"):
        if resume["status"] != 0:
            wrong.append(f"training does not resume: {resume['status']}, {resume['err'][-600:]!r}")
        wrong += [f"after it resumed: {each}" for each in found["damaged after resume"]]
    if truth["weights"] and found["weights"] != truth["weights"]:
        same = [
            name for name in truth["weights"] if found["weights"][name] == truth["weights"][name]
        ]
        wrong.append(f"other weights than without the fault; the same are: {same}")
    return wrong


def _tracebacks(kind: Kind, draw: Draw | None, ending: dict[str, Any]) -> list[str]:
    """Return tracebacks of this library's that are not a section of a report."""
    if kind.what == "World" or _interrupted_imports(draw, ending):
        return []  # a user's program does not catch exceptions
    return [
        f"a raw traceback: {match.group(0)[-700:]!r}"
        for match in _TRACEBACK.finditer(ending["err"])
        if _OURS.search(match.group(0))
    ]

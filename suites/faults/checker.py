"""The checker: what may come of a run with a fault, and what may not."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from suites.faults.runs import Draw, Kind
from suites.faults.world_program import total_of

OLD = '{"old": true}\n'
"""What stands in the report before a run, where there is an older one."""

_FOREIGN = (
    "torchelastic_",
    "pymp-",
    "torchinductor_",
    "hydra",
    "mpich",  # of ranks that are killed while MPI starts them; later there is none
    "ompi.",
    "prte.",
    "filler",
)
"""How names begin that other libraries leave when their processes are killed."""

_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ ].*\n)*(.*)$", re.MULTILINE)
_OURS = re.compile(r'File ".*(disteval|harness)')
_IMPORT = "in <module>"  # the line of a traceback that says that a module is being imported
_NOT_JUDGED = "; not judged: | could not be judged by "
_NAMED = r"^(\[rank \d+\] )?disteval {}: (?!unexpected )\S"


def report_in(out: Path) -> Any:
    """Return the values of a new report; None where it is missing, old or damaged."""
    path = out / "report.json"
    text = path.read_text(errors="replace") if path.exists() else OLD
    try:
        return None if text == OLD else json.loads(text)
    except ValueError:
        return None


def damaged_in(out: Path) -> list[str]:
    """Return which files of the output folder are half-written, or do not belong there."""
    found = []
    for path in sorted(each for each in out.rglob("*") if not each.is_dir()):
        why = ""
        if path.is_symlink() and not path.exists():
            why = "points nowhere"
        elif path.suffix == ".html":
            text = path.read_text(errors="replace")
            whole = text == OLD or text.rstrip().endswith("</html>")
            why = "" if whole else f"ends with {text[-80:]!r}"
        elif path.suffix in (".json", ".pt", ".safetensors"):
            try:
                json.loads(path.read_text()) if path.suffix == ".json" else tensors_of(path)
            except Exception as error:
                why = f"is damaged: {error!r}"
        elif path.suffix not in (".lock", ".sha256") and path.name != "filler":
            why = f"was left ({path.stat().st_size} bytes)"
        found += [f"{path.relative_to(out)} {why}"] if why else []
    return found


def tensors_of(path: Path) -> str:
    """Return a digest of the tensors in a file of safetensors or of torch, if it is whole."""
    digest = hashlib.sha256()
    if path.suffix == ".safetensors":
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        if len(data) != start + max(entry["data_offsets"][1] for entry in header.values()):
            raise ValueError(f"it has {len(data)} bytes")
        digest.update(json.dumps(header, sort_keys=True).encode() + data[start:])
    else:
        with zipfile.ZipFile(path) as archive:  # which checks what it reads
            parts = {name: archive.read(name) for name in sorted(archive.namelist())}
        for name in parts:
            digest.update(parts[name] if "/data/" in name else b"")
    return digest.hexdigest()


def weights_in(work: Path) -> dict[str, str]:
    """Return digests of what a whole training leaves: its best and its last weights."""
    paths = [work / "best.safetensors", work / "epoch_2.pt"]
    return {path.name: tensors_of(path) for path in paths if path.exists()}


def left_in(folder: Path) -> list[str]:
    """Return the files and folders of ours that were left where a run has temporary ones."""
    places = folder / "tmp", folder / "run", Path("/dev/shm")
    return [
        f"{path} ({', '.join(each.name for each in [*path.rglob('*')][:6])})"
        for place in places
        for path in sorted(place.iterdir())
        if not path.name.startswith(_FOREIGN)
    ]


def judge(
    kind: Kind, draw: Draw | None, found: dict[str, Any], truth: dict[str, Any]
) -> tuple[str, list[str]]:
    """Return ``right``, ``named error`` or ``killed``, and what is wrong about the run."""
    ending, report, fault = found["ending"], found["report"], draw.fault if draw else "none"
    status = ending["status"]
    wrong = [f"running after {ending['gone']:.0f} s: {each}" for each in ending["left"]]
    # A process that was killed may leave a file under another name.
    was_killed = fault in ("kill", "stop")
    wrong += [each for each in found["damaged"] if not was_killed or " was left (" not in each]
    wrong += [f"left: {each}" for each in found["left"]]
    # The command can't have said anything that was ended from outside; the user's launcher ends
    # the leader when it has lost a rank.
    is_ended = kind.outer and not (fault == "stop" and draw is not None and draw.whom == "rank")
    killed = status is not None and was_killed and (status < 0 or is_ended)
    if status is None:
        wrong.append(f"the command did not end within {ending['gone']:.0f} s")
    elif status == 0:
        wrong += _wrong_success(kind, ending["out"], report, truth)
    elif not killed:
        wrong += _wrong_failure(kind, draw, ending)
    if kind.backend == "leases" and draw is not None and draw.whom == "rank" and status:
        wrong.append("one lost rank ended an evaluation in leases")
    if report and kind.what == "check" and (fault != "lost connection" or draw.detail["for"]):
        # Without its connection for good it can't be told from a backend that is broken.
        failed = [rule for rule in report["rules"] if rule["outcome"] == "failed"]
        wrong += [f"a correct backend is called broken: {rule['message'][:300]}" for rule in failed]
    if report and kind.what == "eval":
        found = report["metrics"]["accuracy"]
        got = {name: found[f"correct_{name}"] for name in truth["correct"]}
        got |= {"size": report["size"]}
        right = {**truth["correct"], "size": truth["size"]}
        wrong += [] if got == right else [f"the wrong number: {got} for {right}"]
    if kind.what == "fit":
        again = found.get("resume", {"status": 0})
        if again["status"] != 0:
            wrong.append(f"training does not resume: {again['status']}, {again['err'][-600:]!r}")
        wrong += [f"after it resumed: {each}" for each in found.get("damaged after resume", [])]
        if truth["weights"] and found["weights"] != truth["weights"]:
            wrong.append(f"other weights than without the fault: {found['weights']}")
    if kind.what != "World" and not _interrupted_imports(draw, ending):
        # A user's program does not catch exceptions.
        raw = [match.group(0) for match in _TRACEBACK.finditer(ending["err"])]
        wrong += [f"a raw traceback: {each[-700:]!r}" for each in raw if _OURS.search(each)]
    return "right" if status == 0 else "killed" if killed else "named error", wrong


def _wrong_success(kind: Kind, out: str, report: Any, truth: dict[str, Any]) -> list[str]:
    if kind.what == "World":
        right = " ".join(["totals", *[str(total_of(kind.world_size))] * kind.world_size])
        return [] if out.strip() == right else [f"success, and printed {out[-100:]!r}"]
    wrong = [] if report else ["success, and there is no new and whole report"]
    if kind.what == "eval":
        right = f"correct_top1 │ {truth['correct']['top1']} "
        wrong += [] if right in out else [f"success, and did not print {right}: {out[-200:]!r}"]
    return wrong


def _wrong_failure(kind: Kind, draw: Draw | None, ending: dict[str, Any]) -> list[str]:
    """Return what is wrong about the exit status and the sentence of a command that failed."""
    status, err = ending["status"], ending["err"]
    if draw is None or draw.fault in ("none", "pause", "clock jump"):
        return [f"exit status {status} without a reason to fail: {err[-600:]!r}"]
    if _interrupted_imports(draw, ending):
        return []
    unnamed = [] if _is_named(kind, ending) else [f"no named error: {err[-600:]!r}"]
    if kind.outer:
        # A launcher that is interrupted, or without a connection, ends the leader.
        return (
            unnamed if draw.fault in ("stop", "full disk") and "ranks" in ending["events"] else []
        )
    allowed = {1, 2} if draw.fault == "full disk" else {1}
    if kind.what == "check":
        allowed = {1, 2} if draw.fault in ("full disk", "lost connection") else {2}
    if draw.fault == "Ctrl-C":
        if status == -2 and not err.strip():  # before Python runs, or after all is done
            return []
        allowed = {130, -2} if kind.what == "World" else {130}  # which a shell calls 130, too
    return unnamed + [f"exit status {status}, not {sorted(allowed)}"] * (status not in allowed)


def _is_named(kind: Kind, ending: dict[str, Any]) -> bool:
    """Whether a command that failed has said why in a sentence of its own."""
    err = ending["err"]
    if kind.what == "World":
        return "disteval.errors." in err or "KeyboardInterrupt" in err.rstrip().rpartition("\n")[2]
    if kind.what == "check" and re.search(_NOT_JUDGED, ending["out"]):  # the reason is in the table
        return True
    return bool(re.search(_NAMED.format(kind.what), err, re.MULTILINE))


def _interrupted_imports(draw: Draw | None, ending: dict[str, Any]) -> bool:
    """Whether Ctrl-C came while Python imported the command, which can't say its name then."""
    if draw is None or draw.fault != "Ctrl-C" or "directory" in ending["events"]:
        return False
    return _IMPORT in ending["err"] or ending["err"] == "disteval: interrupted\n"

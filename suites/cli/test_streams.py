"""Results and verdicts survive full disks, closed streams, and terminals that know only ASCII."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from suites.helpers.command import invoke
from suites.helpers.needs import needs

DISTEVAL = f"{shlex.quote(sys.executable)} -m disteval.cli"
CHECK = "check threads --world-size=1 --rules=1.1,2.1,9.1 --examples=2"
BROKEN = "suites.mutants.broken.gathered:ReversedOrder"
FULL = os.strerror(errno.ENOSPC)
Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a function that runs a line of a shell, which finds the command in $DISTEVAL."""

    def run(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"DISTEVAL": DISTEVAL, "COLUMNS": "100", "NO_COLOR": "1", **variables}
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
            capture_output=True,
            encoding=None if variables else "utf-8",
            text=True,
            timeout=120,
            check=False,
        )

    return run


@needs("jinja2")
def test_what_can_not_be_printed_is_said_once_and_is_in_the_files_all_the_same(
    shell: Shell, tmp_path: Path
) -> None:
    done = shell(f"$DISTEVAL {CHECK} --json=r.json --html=r.html > /dev/full")
    assert done.returncode == 2
    assert FULL in done.stderr and done.stderr.count("\n") == 1
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "incomplete"
    assert (tmp_path / "r.html").read_text().rstrip().endswith("</html>")
    piped = shell(f"$DISTEVAL {CHECK} --json=/dev/stdout | head -1")
    assert piped.stdout == "{\n"  # the report, and not the table


@pytest.mark.parametrize(
    ("target", "streams", "status"),
    [
        ("threads", ">&- 2>&- <&-", 0),
        ("threads", "| head -n 1", 0),
        (BROKEN, "2>/dev/full", 1),
    ],
)
def test_closed_streams_change_no_verdict(
    shell: Shell, tmp_path: Path, target: str, streams: str, status: int
) -> None:
    command = f"check {target} --world-size=2 --rules=2.1 --examples=9 --json=r.json"
    done = shell(f"$DISTEVAL {command} {streams}")
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    verdict = {0: "incomplete", 1: "broken"}[status]
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == verdict


def test_an_encoding_that_lacks_signs_ends_no_command(shell: Shell) -> None:
    posix = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = shell(f"$DISTEVAL {CHECK}", **posix)
    assert done.returncode == 0, done.stderr
    assert "threads passes rules 1.1, 2.1" in done.stdout
    assert {*re.findall(r"\\u\w{4}", done.stdout)} == {r"\u2713", r"\u2013"}


def test_a_pipe_that_does_not_wait_for_its_reader_gets_everything() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as read:
        os.set_blocking(writer, False)
        room = os.write(writer, b"." * (1 << 20))
        command = [sys.executable, "-m", "disteval.cli", "--help"]
        with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process:
            os.close(writer)
            assert process.stderr is not None
            # The command can't end before there is room for what it prints.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
            printed = read.read()[room:]
            assert (process.wait(60), process.stderr.read()) == (0, b"")
    assert "disteval check " in printed


@needs("jinja2")
def test_a_report_on_a_full_disk_is_whole_or_as_it_was(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    mount = "unshare -Urm bash -c"
    if shell(f"{mount} 'mount -t tmpfs none disk'").returncode:
        pytest.skip("not run: this user may not mount a file system in a namespace of its own")
    command = f"$DISTEVAL {CHECK} --json=disk/r.json --html=disk/r.html"
    done = shell(
        f"{mount} 'mount -t tmpfs -o size=16k none disk && echo old > disk/r.html && {command}; "
        f"status=$?; ls -A disk; cat disk/r.html; exit $status'"
    )
    assert done.returncode == 2
    assert "disk/r.html" in done.stderr and FULL in done.stderr
    *shown, first, second, page = done.stdout.splitlines()
    assert (first, second, page) == ("r.html", "r.json", "old")
    assert any(line.startswith("threads ") for line in shown)


def test_an_evaluation_that_can_not_be_written_is_printed() -> None:
    done = invoke("eval", "suites.helpers.lease_task:task", "--backend=threads", "--json=/dev/full")
    assert done.exit_code == 2
    assert re.search(r"\b240\b", done.stdout)
    assert "--json /dev/full" in done.stderr


def test_a_broken_backend_stays_broken_where_the_report_can_not_be_written() -> None:
    options = ["--world-size=2", "--rules=2.1", "--json=/dev/full"]
    done = invoke("check", BROKEN, *options)
    assert done.exit_code == 1, done.output
    assert "--json /dev/full" in done.stderr

"""Run the commands and programs of findings again, and hold what they print to their pages.

``python -m suites.findings.replay accelerate-reduce`` needs what the page says that pip installs,
which ``nox -s findings -- accelerate-reduce`` does.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from suites.findings.page import ROOT, Finding, findings

COMMAND_SECONDS = 300.0
PROGRAM_SECONDS = 900.0


def main() -> int:
    """Replay the findings that are named, or of installed releases; return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slugs", nargs="*", help="findings; all of installed releases by default")
    slugs = parser.parse_args().slugs
    those = chosen(slugs) if slugs else [one for one in findings() if _expected(one) is not None]
    differing = [one.slug for one in those if not _is_as_known(one)]
    print(f"{len(those) - len(differing)} of {len(those)} are as their pages say")
    if differing:
        print(f"not so: {', '.join(differing)}")
    return 1 if differing else 0


def chosen(names: Iterable[str]) -> list[Finding]:
    """Return the findings with these slugs, or about these libraries.

    Raises:
        SystemExit: There is no finding of such a name.
    """
    every = findings()
    if unknown := {*names} - {one.slug for one in every} - {one.name for one in every}:
        sys.exit(f"no finding is called {', '.join(sorted(unknown))}; see findings/README.md")
    return [one for one in every if {one.slug, one.name} & {*names}]


def _is_as_known(one: Finding) -> bool:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        differences = replay(one, Path(folder))
    sign = "DIFFERS" if differences else "as its page says"
    print(
        f"{one.slug}: {installed(one.name)}: {sign} ({time.monotonic() - begin:.0f} s)", flush=True
    )
    print("".join(f"{text}\n" for text in differences), end="", flush=True)
    return not differences


def replay(finding: Finding, folder: Path) -> list[str]:
    """Run a finding's commands and its program, and return what differs from its page.

    With the release that is right, the commands must find nothing, and the program is left out.

    Args:
        finding: The finding.
        folder: An empty folder.
    """
    wrong = _expected(finding)
    if wrong is None:
        return [
            f"{finding.library} is wanted, and {installed(finding.name) or 'none'} is installed"
        ]
    for name, code in finding.files.items():
        (folder / name).write_text(code)
    differences = []
    for command in finding.convicts:
        words = [sys.executable, "-m", "disteval.cli", *shlex.split(command)]
        status, output = _run(words, folder, COMMAND_SECONDS, PYTHONPATH=_path())
        # Results are wrapped at the width of the terminal.
        if wrong and finding.says not in " ".join(output.split()):
            differences.append(f"{command} does not say {finding.says!r}:\n{output}")
        elif status != int(wrong):
            differences.append(f"{command} ended with {status}, not {int(wrong)}:\n{output}")
    if finding.program and wrong:
        _, output = _run(["bash", "-c", finding.program], folder, PROGRAM_SECONDS)
        if missing := lines_missing(finding.printed, output):
            lines = "\n".join(missing)
            differences.append(f"the program prints no line like\n{lines}\nbut\n{output}")
    return differences


def installed(library: str) -> str:
    """Return the installed release of a library; an empty text if there is none."""
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _expected(finding: Finding) -> bool | None:
    """Return whether the installed release is one that is wrong; None if the page is about none."""
    found = installed(finding.name).partition("+")[0]  # torch's has the kind of its build
    return {finding.right_in: False, finding.release: True}.get(found) if found else None


def lines_missing(printed: str, output: str) -> list[str]:
    """Return the lines of a page that an output lacks; ``...`` stands for any text in a line.

    Ranks share the output, and torchrun's write the ends of their lines apart from the lines, so a
    line may be found before and after another one. A number must end where it ends on the page.
    """
    return [
        wanted
        for wanted in filter(None, map(str.strip, printed.splitlines()))
        if not re.search(".*".join(map(re.escape, wanted.split("..."))) + r"(?!\d|\.\d)", output)
    ]


def _path() -> str:
    """Return where Python finds `suites` from any folder."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def _run(command: list[str], folder: Path, seconds: float, **variables: str) -> tuple[int, str]:
    """Run a command with this environment's programs, and end all of it after some time."""
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    variables |= {"PATH": programs, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    # A file, for a pipe stays open as long as any process that torchrun has started.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | variables, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(seconds)
            ended = ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = f"\nit was ended after {seconds:g} s"
        output.seek(0)
        return process.returncode, output.read() + ended


if __name__ == "__main__":
    sys.exit(main())

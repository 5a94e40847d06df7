"""Run a finding again, and the program of its report, and hold what they print to what is known."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from suites.findings.table import ROOT, Finding

COMMAND_SECONDS = 300.0
REPORT_SECONDS = 120.0
_SECTIONS = (
    "Reproduction", "What it prints", "What is documented", "Environment",
)  # fmt: skip
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Report:
    """The parts of a page of docs/findings/.

    Attributes:
        program: Python code, which does not need our package.
        file: The name of the file that it is in, from its first line.
        command: The command line that runs it.
        printed: What it prints. ``...`` stands for any text in a line; lines that are not there may
            be printed too, and ranks may print theirs in any order.
    """

    program: str
    file: str
    command: str
    printed: str


def read_report(path: Path) -> Report:
    """Return the parts of a report.

    Raises:
        ValueError: The report has other sections or blocks than reports have.
    """
    text = path.read_text(encoding="utf-8")
    title, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    sections = {name: body for name, _, body in (part.partition("\n") for part in parts)}
    if tuple(sections) != _SECTIONS or not re.match(r"# .+\n\n\S", title):
        raise ValueError(
            f"{path.name} has the sections {', '.join(sections)}; see docs/findings.md"
        )
    blocks = _BLOCK.findall(sections["Reproduction"])
    if [language for language, _ in blocks] != ["python", "bash"]:
        raise ValueError(f"the reproduction of {path.name} is not one Python block and one of bash")
    (_, program), (_, command) = blocks
    named = re.match(r"# (\w+\.py)\n", program)
    printed = _BLOCK.findall(sections["What it prints"])
    if named is None or [language for language, _ in printed] != ["text"]:
        raise ValueError(f"{path.name} names no file for its program, or shows no output of it")
    return Report(program, named[1], command.strip(), printed[0][1])


def replay(finding: Finding, folder: Path) -> list[str]:
    """Run a finding's command and its report's program, and return what differs.

    Args:
        finding: The finding, whose releases are installed.
        folder: An empty folder for the program.
    """
    differences = _replay_command(finding) if finding.command else []
    if finding.report.exists():
        report = read_report(finding.report)
        (folder / report.file).write_text(report.program)
        _, output = _run(["bash", "-c", report.command], folder, REPORT_SECONDS)
        if missing := lines_missing(report.printed, output):
            lines = "\n".join(missing)
            differences.append(f"{finding.report.name} prints no line like\n{lines}\nbut\n{output}")
    return differences


def _replay_command(finding: Finding) -> list[str]:
    name, *words = shlex.split(finding.command)
    module = [] if name == "python" else ["-m", "disteval.cli", name]
    status, output = _run([sys.executable, *module, *words], ROOT, COMMAND_SECONDS)
    # Results are wrapped at the width of the terminal.
    if finding.says not in " ".join(output.split()):
        return [f"{finding.command} does not say {finding.says!r}:\n{output}"]
    if name != "python" and status != 1:
        return [f"{finding.command} ended with {status} instead of 1"]
    return []


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


def _run(command: list[str], folder: Path, seconds: float) -> tuple[int, str]:
    """Run a command with this environment's programs, and end all of it after some time."""
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    variables = {"PATH": programs, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\nit was ended after {seconds:g} s"
    return process.returncode, output

"""The files of a rank in its directory, and the machine on which they and its process are seen."""

from __future__ import annotations

import platform
import signal
import uuid
from pathlib import Path
from typing import Literal

STACK_SIGNAL = signal.SIGUSR1
"""The signal at which a rank writes its stacks to its file."""

Kind = Literal["collectives", "stack", "out", "ended", "ended.part"]


def rank_file(directory: Path, rank: int, kind: Kind) -> Path:
    """Return where a rank logs its collectives, writes its stacks or output, or how it ended."""
    return directory / f"rank-{rank}.{kind}"


def this_machine() -> str:
    """Return an identity of this machine, as far as files and process ids mean the same in it.

    Two containers of one machine have different ones. Host names can be equal by chance.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("pid", "mnt")]
    except OSError:  # there is no /proc here
        return f"{platform.node()} {uuid.getnode()}"
    return " ".join(map(str, [boot, *namespaces]))

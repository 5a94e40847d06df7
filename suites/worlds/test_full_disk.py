"""A world whose folder for temporary files has no space left."""

from __future__ import annotations

from pathlib import Path

from suites.helpers.namespaces import run_alone

PROGRAM = """
import os, subprocess, tempfile
from disteval.errors import WorldError
from disteval.worlds import World

folder = tempfile.gettempdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
with open(f"{folder}/filler", "wb", 0) as file:
    while not os.statvfs(folder).f_bavail == 0:
        file.write(bytes(4096))
try:
    World("non_dist", 1)
except WorldError as error:
    print(error)
print(os.listdir(folder))
"""


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    told, left = run_alone(PROGRAM, folder=tmp_path).splitlines()
    assert told.startswith("the ranks can't be started ([Errno 28] No space left on device)")
    assert told.endswith("free space there, or set TMPDIR to another folder")
    assert left == "['filler']"

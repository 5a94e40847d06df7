"""Shifts the clock of a Python process as soon as the file that FAULTS_CLOCK names appears.

It covers what a process asks ``time.time`` and ``time.time_ns`` for, which is how Python code reads
the time of day. Kernel timestamps, such as those of files, and monotonic clocks do not jump.
"""

import os
import time

_path = os.environ.get("FAULTS_CLOCK", "")
_time, _time_ns = time.time, time.time_ns


def _shift():
    try:
        with open(_path) as file:
            return int(file.read() or 0)
    except (OSError, ValueError):
        return 0


if _path:
    time.time = lambda: _time() + _shift()
    time.time_ns = lambda: _time_ns() + _shift() * 1_000_000_000

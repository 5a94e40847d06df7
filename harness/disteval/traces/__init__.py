"""Traces: what each rank did, and when, in files that Perfetto and chrome://tracing open.

A trace is off unless it is asked for: with ``--trace DIR`` of the command line, with
``World(..., trace=DIR)``, or with `recording` in a program of your own. See docs/report.md.
"""

from disteval.traces.folder import TraceFolder
from disteval.traces.recorder import Recorder, current, loading, recording, span

__all__ = ["Recorder", "TraceFolder", "current", "loading", "recording", "span"]

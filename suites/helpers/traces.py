"""What tests know of traces: how a rank records one, and how a folder of them is read."""

from pathlib import Path

from disteval import traces
from disteval.traces.folder import MERGED, Place, TraceFolder, cap_for, own_clock
from disteval.traces.merging import merged_events, write_merged
from disteval.traces.reading import Row, TraceEvent, WorldTrace, read_worlds
from disteval.traces.recorder import Recorder, start_with
from disteval.traces.summary import TraceSummary, summarise
from disteval.traces.torch_calls import TorchCall, find_parting, read_calls
from disteval.traces.waits import find_waits, timeline
from disteval.world import PostMortem, RankStatus


def place_from_zero(folder: Path | TraceFolder, title: str, world_size: int) -> Place:
    """Return where a new world's ranks are recorded, whose time begins at 0."""
    there = folder if isinstance(folder, TraceFolder) else TraceFolder(folder)
    return there.new_world(title, world_size)._replace(begin=0)

"""The configuration of pytest: markers, and worlds by the plugin that third parties load too."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from disteval.conformance.plugin import required
from disteval.data import load_cifar10
from disteval.metrics import Accuracy
from disteval.models import default_weights
from disteval.registry import list_all_backends
from disteval.world import detect_outer_world

from suites.helpers import needs
from suites.helpers.pictures import write_small_cifar10

SUITES = Path(__file__).parent

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest brings tomli
    import tomli as tomllib

TABLE = tomllib.loads((SUITES / "sessions.toml").read_text())
SESSIONS: dict[str, dict[str, Any]] = TABLE["sessions"]

pytest_plugins = ["disteval.conformance.plugin"]

OVER = {"mpirun": ["mpi4py", "torch_cpu"], "torchrun": ["torch_cpu"], "horovodrun": ["tf_horovod"]}
"""The backends over which tests run on the ranks of a launcher, if none is named."""

_LEFT_OUT = pytest.StashKey[str]()

try:
    from hypothesis import settings
except ImportError:  # what needs it says so
    pass
else:
    # A test says whether an answer is right; how long it took says how busy the machine is.
    settings.register_profile("untimed", settings(), deadline=None, max_examples=50)
    settings.load_profile("untimed")


@pytest.fixture(scope="module")
def without_canary() -> Generator[None]:
    """Have `predict` called only for what is counted, where tests count its calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTEVAL_CANARY", "off")
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers that sessions select tests by."""
    # A job in the background of a shell ignores Ctrl-C, and so would all processes of the tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "needed(*names): what `needs` was given")
    config.addinivalue_line("markers", "optional: needs anything that `needs` knows of")
    for marker, names in needs.MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: needs one of {', '.join(names)}")
    # A session collects no worlds but those of the backends that it requires.
    if not config.option.backend and detect_outer_world() is None:
        config.option.backend = [name for name in list_all_backends() if name in required()]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Mark each test with what it needs, and check that a session selects it."""
    for item in items:
        needs.add_markers(item)
    check_that_a_session_selects(items, SESSIONS.values())
    _leave_out(config, items)
    yield
    # The world of the last ones stays open to their end, and Ray has room for one world.
    items.sort(key=lambda item: "worlds" in getattr(item, "fixturenames", ()))


def pytest_sessionstart() -> None:
    """Have commands print wide and without colours, whether they run in this process or another.

    Ranks are forked off processes that were started with the same environment, and are kept.
    """
    os.environ |= {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode
) -> None:
    """Say how many were left out, and write where noxfile.py says which took longest or failed."""
    if left_out := terminalreporter.config.stash.get(_LEFT_OUT, ""):
        terminalreporter.write_line(left_out)
    if path := os.environ.get("SUITES_DURATIONS"):
        seconds: Counter[str] = Counter()
        for reports in terminalreporter.stats.values():
            for report in reports:
                seconds[getattr(report, "nodeid", "")] += getattr(report, "duration", 0.0)
        lines = [f"{took:8.1f}  {test}\n" for test, took in seconds.most_common(40)]
        Path(path).write_text(f"{seconds.total():8.1f}  all\n{''.join(lines)}")
        if exitstatus == pytest.ExitCode.TESTS_FAILED:
            stats = terminalreporter.stats
            tests = {one.nodeid for kind in ("failed", "error") for one in stats.get(kind, ())}
            Path(path).with_suffix(".failed").write_text("\n".join(sorted(tests)))


@pytest.fixture(scope="session")
def small_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the first pictures of the embedded set as CIFAR-10."""
    folder = tmp_path_factory.mktemp("cifar10")
    write_small_cifar10(folder)
    return folder


@pytest.fixture(scope="session")
def small_accuracy(small_cifar10: Path) -> dict[str, float]:
    """The accuracy that the default model has on `small_cifar10`, found in one process."""
    from disteval.models.resnet18_torch import make_predict

    dataset = load_cifar10(small_cifar10)
    accuracy = Accuracy(topk=(1, 3))
    accuracy.add(make_predict(default_weights())(dataset.images), dataset.labels)
    return accuracy.compute(size=len(dataset))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test, or fail it, where what it needs is missing."""
    for name in needs.names_needed(item):
        needs.require(name)


def check_that_a_session_selects(
    items: Iterable[pytest.Item], sessions: Iterable[dict[str, Any]]
) -> None:
    """Fail the collection where a test is selected by no session.

    Args:
        items: The tests, with their markers.
        sessions: The tables of suites/sessions.toml.
    """
    selections = [
        (tuple(SUITES / name for name in one["folders"]), Expression.compile(one["selects"]))
        for one in sessions
    ]
    for item in items:
        if "worlds" in getattr(item, "fixturenames", ()) and needs.names_needed(item):
            continue  # over every backend with every kind of arrays; sessions have some pairs
        above = {item.path, *item.path.parents}
        markers = {marker.name for marker in item.iter_markers()}
        if not any(
            not above.isdisjoint(folders) and expression.evaluate(markers.__contains__)
            for folders, expression in selections
        ):
            raise pytest.UsageError(
                f"{item.nodeid} needs {', '.join(needs.names_needed(item)) or 'nothing'}, and no "
                "session in suites/sessions.toml selects such a test in this folder; change what "
                "a session selects, or what the test needs"
            )


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect worlds that nobody asked for, and what uses no ranks of a launcher.

    ``--backend`` asks, or a session by what it requires; ``--world-size`` is enough where a test
    names more sizes by ``world_sizes``, and no test gets more ranks than that. A world of one
    thread shows no more than ``non_dist``. On ranks that a launcher has started, tests that use no
    ranks would run on rank 0 alone.
    """
    outer, every = detect_outer_world(), list_all_backends()
    default = OVER.get(outer.launcher, every) if outer else every
    asked = config.getoption("backend") or default
    kept = {*asked} if outer else {*asked, None}
    sizes = {*(config.getoption("world_size") or ())}

    def is_out(item: pytest.Item) -> bool:
        backend, size = needs.world_of(item)
        if (backend, size) == ("threads", 1) and "non_dist" in kept:
            return True
        named = {size for one in item.iter_markers("world_sizes") for size in one.args}
        is_larger = bool(sizes and size) and size > max(sizes)
        return backend not in kept or is_larger or (bool(named & sizes) and size not in sizes)

    out = [item for item in items if is_out(item)]
    items[:] = [item for item in items if not is_out(item)]
    config.hook.pytest_deselected(items=out)
    if outer is not None:
        config.stash[_LEFT_OUT] = (
            f"{len(out)} tests do not use the ranks of this job over {', '.join(asked)}; run them "
            f"without {outer.launcher}, or name another --backend"
        )

"""The configuration of pytest: markers, and worlds by the plugin that third parties load too."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from disteval.data import load_cifar10
from disteval.metrics import Accuracy
from disteval.models import default_weights
from disteval.worlds import detect_outer_world

from suites.helpers import marks, requirements
from suites.helpers.pictures import write_small_cifar10

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest brings tomli
    import tomli as tomllib

# The table is a plugin, since xdist leaves conftest.py of folders to its workers.
pytest_plugins = ["disteval.conformance.plugin", "suites.mutants.table"]

try:
    from hypothesis import settings
except ImportError:  # what needs it says so
    pass
else:
    # A test says whether an answer is right; how long it took says how busy the machine is.
    settings.register_profile("untimed", settings(), deadline=None)
    settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers that sessions select tests by."""
    config.addinivalue_line("markers", f"{marks.NOTHING}: needs no library that is optional")
    for marker, names in marks.MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: needs one of {', '.join(names)}")
    for folder, marker in marks.FOLDERS.items():
        config.addinivalue_line("markers", f"{marker}: is in suites/{folder}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with what it needs, and check that a session selects it."""
    marks.mark(items)
    table = tomllib.loads(Path(__file__).with_name("sessions.toml").read_text())["sessions"]
    marks.check_that_a_session_selects(items, [one["selects"] for one in table.values()])
    _leave_out_what_needs_other_ranks(items)


@pytest.fixture(scope="session")
def small_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the first pictures of the embedded set as CIFAR-10."""
    folder = tmp_path_factory.mktemp("cifar10")
    write_small_cifar10(folder)
    return folder


@pytest.fixture(scope="session")
def small_accuracy(small_cifar10: Path) -> dict[str, float]:
    """The accuracy that the default model has on `small_cifar10`, found in one process."""
    requirements.framework("torch")
    from disteval.models.resnet18_torch import make_predict

    dataset = load_cifar10(small_cifar10)
    accuracy = Accuracy(topk=(1, 3))
    accuracy.add(make_predict(default_weights())(dataset.images), dataset.labels)
    return accuracy.compute(size=len(dataset))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tell `requirements` which markers the running test has."""
    requirements.markers_of_this_test = {marker.name for marker in item.iter_markers()}
    try:
        return (yield)
    finally:
        requirements.markers_of_this_test = None


def _leave_out_what_needs_other_ranks(items: list[pytest.Item]) -> None:
    """Skip tests that do not use ranks if this process is a rank of an outer launcher."""
    outer = detect_outer_world()
    if outer is None:
        return
    reason = f"not run: it does not use the ranks of this job; run it without {outer.launcher}"
    for item in items:
        if "worlds" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=reason))

"""A pytest plugin whose fixtures are worlds of ranks, started here or joined under ``mpirun``.

Load it with ``pytest -p disteval.conformance.plugin``, or with ``pytest_plugins`` in a conftest::

    @pytest.mark.world_sizes(2, 4)
    def test_sum(world):
        assert world.run(my_sum, *range(world.world_size)) == …

A test that uses ``world`` runs once for each backend of ``--backend`` and each size of
``--world-size``. Under ``mpirun -np 3 pytest`` or ``torchrun --nproc-per-node 3 -m pytest`` the
plugin starts no ranks: rank 0 runs the tests and takes part, the other ranks follow its orders, and
all ranks end with the same exit status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import Any, NoReturn

import pytest

from disteval.conformance.bench import Bench
from disteval.conformance.own_calls import own_calls_end, reduce_once
from disteval.conformance.results import RuleResult, contract
from disteval.conformance.rule import Rule
from disteval.conformance.verdict import finding_of, first_of, judge, place_of
from disteval.conformance.world import JudgedWorld
from disteval.contract import Capabilities
from disteval.errors import HarnessError, LibraryMissingError, UsageError, WorldError
from disteval.host import exit_now
from disteval.judging.report import Verdict
from disteval.judging.session import Led, Session, leading
from disteval.registry import add_working_directory, get_backend_class, list_all_backends
from disteval.text import visible
from disteval.world import World

_DEFAULT_WORLD_SIZES = (1, 2, 3)
_OPTIONS = (
    "--backend", "--disteval-backend", "--world-size", "--world-timeout", "--world-interface",
    "--examples",
)  # fmt: skip
RESULT = pytest.StashKey[RuleResult]()
"""Where a test leaves the result of its rule."""

NOTHING_TRIED = 2
"""The exit status of a run in which nothing was tried, which is that of ``disteval check``."""

_RECORD = "disteval_record"


Code = int | pytest.ExitCode | None
_LED = pytest.StashKey[Led[JudgedWorld]]()
_TOLD = pytest.StashKey[dict[str, dict[object, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of worlds."""
    group = parser.getgroup("disteval", "worlds of ranks")
    group.addoption(
        "--backend", "--disteval-backend", action="append", default=[], metavar="NAME",
        help="Run only on this backend: a registered name, or module:Class; may be repeated. "
        "Fails if it is not available. [default: every backend that is available]",
    )  # fmt: skip
    group.addoption(
        "--world-size", type=_sizes, metavar="1,2,3",
        help="World sizes. [default: 1,2,3, or the world size of mpirun or torchrun]",
    )  # fmt: skip
    group.addoption("--world-timeout", type=float, default=20.0, metavar="SECONDS",
        help="Seconds without a reply or progress after which a world has failed. [default: 20]",
    )  # fmt: skip
    group.addoption("--world-interface", metavar="NAME|ADDRESS",
        help="The network interface of rank 0's host on which it leads ranks of other hosts, under "
        "mpirun, torchrun or srun. [default: the one by which the launcher knows the host]",
    )  # fmt: skip
    group.addoption("--examples", type=int, default=25, metavar="N",
        help="The number of drawn examples for each rule. [default: 25]",
    )  # fmt: skip


def _sizes(text: str) -> tuple[int, ...]:
    if min(sizes := tuple(map(int, text.split(",")))) < 1:
        raise ValueError(text)
    return sizes


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and the summary, and let ranks import from the working directory."""
    config.addinivalue_line(
        "markers", "world_sizes(*sizes): run at these world sizes instead of --world-size's"
    )
    config.addinivalue_line(
        "markers", "needs(capability): skip on backends that declare that they don't have it"
    )
    add_working_directory()
    # Under a launcher its rank 0 is this process, in which a library must not begin too early.
    is_launched = _led(config).outer is not None
    for name in config.getoption("backend"):
        if ":" in name and not is_launched:
            try:
                get_backend_class(name)
            except HarnessError as error:
                _refuse(error)
    named = [*config.getoption("backend"), *required()]
    config.pluginmanager.register(SummaryPlugin(named, is_launched))


def _led(config: pytest.Config) -> Led[JudgedWorld]:
    """Return what the tests run on; a worker of pytest-xdist starts its ranks itself."""
    default = config.getoption("world_size") or _DEFAULT_WORLD_SIZES
    return config.stash.get(_LED, Led(default))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Code, Code]:
    """On ranks of a launcher run the tests on rank 0, and let the others follow its orders."""
    asked, interface = config.getoption("world_size"), config.getoption("world_interface")
    begun = leading(asked, _DEFAULT_WORLD_SIZES, _refuse, world=JudgedWorld, interface=interface)
    with begun as led:
        if led.outer is not None and config.getoption("numprocesses", None):
            raise UsageError(
                f"-n can't be used under {led.outer.launcher}, whose ranks are the processes"
            )
        config.stash[_LED] = led
        with ExitStack() as stack:
            if led.world and led.outer and led.outer.launcher in ("mpirun", "srun"):
                led.world.run(reduce_once)
                end = partial(_end, config)
                stack.enter_context(own_calls_end(config.getoption("world_timeout"), end))
            code: Code = yield
        led.exit_code = int(code or 0)
    return code


def _end(config: pytest.Config, reason: str) -> None:
    """End this process, whose launcher then ends the other ranks."""
    if capture := config.pluginmanager.getplugin("capturemanager"):
        capture.suspend_global_capture(in_=True)
    print(f"\ndisteval: {reason}", file=sys.stderr)  # noqa: T201
    exit_now(2)


def _refuse(error: HarnessError) -> NoReturn:
    raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return a line that says which outer world was joined."""
    outer = _led(config).outer
    if outer is None:
        return None
    return f"disteval: {outer.launcher} started {outer.world_size} ranks; this one leads"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses a world on every backend, at every world size."""
    if "worlds" not in metafunc.fixturenames:
        return
    config = metafunc.config
    backends = config.getoption("backend") or list_all_backends()
    marker = metafunc.definition.get_closest_marker("world_sizes")
    sizes = marker.args if marker else _led(config).sizes
    groups = [
        pytest.param((name, size), id=f"{name}-W{size}") for name in backends for size in sizes
    ]
    metafunc.parametrize("worlds", groups, indirect=True, scope="session")


@pytest.fixture(scope="session")
def worlds(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The ranks of one backend at one size: the present ones, or new ones if those were lost."""
    name, size = request.param
    config = request.config
    led, timeout = _led(config), config.getoption("world_timeout")
    try:
        if reason := led.why_not(name):
            not_run(config, name, reason)
        if led.world is not None:
            led.world.run(reduce_once)
        if led.outer is not None and size not in led.sizes:
            pytest.skip(f"not run: world size {size}, and this job has {led.sizes[0]} ranks")
        session = Session(name, JudgedWorld, led=led.world, timeout=timeout)
        if size > 1 and (declared := session.cls.capabilities.why_not("multi_rank")):
            pytest.skip(f"{name} declares that it can't do world size {size}: {declared}")
        session.world(size)
    except (LibraryMissingError, WorldError) as error:
        # Every rank may say that the backend can't be used on this machine.
        missing = error.common if isinstance(error, WorldError) else error
        if isinstance(missing, LibraryMissingError):
            not_run(config, name, str(missing))
        raise
    with session:
        yield Bench(session, size, config.getoption("examples"), sizes=led.sizes)


@pytest.fixture
def world(worlds: Bench, request: pytest.FixtureRequest) -> World:
    """Return the world of the previous test, or a new world if that one was lost."""
    for marker in request.node.iter_markers("needs"):
        [capability] = marker.args
        if declared := worlds.cls.capabilities.why_not(capability):
            pytest.skip(f"{worlds.cls.__name__} declares no {capability}: {declared}")
    return worlds.world


def not_run(config: pytest.Config, name: str, reason: str) -> NoReturn:
    """Skip a test whose backend is not available, or fail it if the backend is required.

    ``--backend`` and the environment variable ``DISTEVAL_REQUIRE`` name required backends.
    """
    if name in config.getoption("backend"):
        pytest.fail(f"--backend names {name}, but {reason}", pytrace=False)
    if name in required():
        pytest.fail(f"DISTEVAL_REQUIRE names {name}, but {reason}", pytrace=False)
    pytest.skip(f"not run: {reason}")


def required() -> list[str]:
    """Return the names in ``DISTEVAL_REQUIRE``."""
    return os.environ.get("DISTEVAL_REQUIRE", "").split(",")


def failure_text(config: pytest.Config, backend: str, result: RuleResult) -> str:
    """Return the failure of a rule as text.

    If another failure of this backend has shown the same mistake, that one is referred to.
    """
    found = finding_of(vars(result))
    told = config.stash.setdefault(_TOLD, {}).setdefault(backend, {})
    first = first_of(told, vars(result))
    if first != place_of(vars(result)):
        same = f"the same mistake as {first}"
        found = replace(found, message=same, example="", usually="", evidence=())
    return "\n".join(map(str, found.lines()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Raise an error, before any test runs, if a marker names an unknown capability."""
    known = [field.name for field in fields(Capabilities)]
    for item in items:
        for marker in item.iter_markers("needs"):
            if list(marker.args) != [name for name in marker.args if name in known][:1]:
                raise pytest.UsageError(
                    f"{item.nodeid}: needs{marker.args!r} names no capability; the known ones "
                    f"are: {', '.join(known)}"
                )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse options of worlds, before any test runs, if no test to be run can use them."""
    words = [str(word).partition("=")[0] for word in session.config.invocation_params.args]
    given = ", ".join(word for word in dict.fromkeys(words) if word in _OPTIONS)
    # A test that takes `pytestconfig` may start worlds itself as the options say.
    takes = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if not given or not session.items or takes & {"worlds", "pytestconfig"}:
        return
    reason = (
        f"{given} can't have an effect: not one of the {len(session.items)} tests to be run uses "
        "the fixture world; leave it out, or run tests on ranks, such as --pyargs "
        "disteval.conformance.suite"
    )
    if not hasattr(session.config, "workerinput"):
        raise pytest.UsageError(reason)
    session.shouldstop = reason  # a worker of pytest-xdist can't refuse a command line


class SummaryPlugin:
    """A pytest plugin that prints verdicts, and fails a run on ranks in which nothing was tried.

    The reports of tests carry the results, so those of the workers of pytest-xdist come together.

    Args:
        named: The backends that have to be tried if a test asks for them.
        is_launched: Whether a launcher has started the ranks, on which some test has to run.

    Attributes:
        records: The result of each rule and world size, by backend.
        known: The contract of each backend, and why it can't do more than one rank, as `judge`
            takes them.
        skipped: The number of tests on ranks that were skipped; of any tests on launched ranks.
        ran: The number of tests that ran, on ranks or not.
    """

    def __init__(self, named: Collection[str], is_launched: bool) -> None:
        self.named, self.is_launched = named, is_launched
        self.records: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
        self.known: dict[str, tuple[dict[str, str], str]] = {}
        self.skipped, self.ran = 0, 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to the report of a test on ranks what it found, as plain values."""
        report = yield
        if "worlds" in getattr(item, "fixturenames", ()):
            setattr(report, _RECORD, _record(item, report))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the result of a test, which may have run in another process."""
        record = getattr(report, _RECORD, None)
        # A test that is expected to fail, and does, is reported as skipped.
        ran = report.when == "call" and (not report.skipped or hasattr(report, "wasxfail"))
        self.ran += ran
        self.skipped += report.skipped and not ran and (record is not None or self.is_launched)
        if record:
            target, known, result = record
            records = self.records.setdefault(target, {})
            if result is not None:
                records[result["id"], result["world_size"]] = result
            self.known[target] = known or self.known.get(target, ({}, ""))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Change the exit status 0 of a run in which nothing was tried."""
        is_worker = hasattr(session.config, "workerinput")
        if not is_worker and self._reason(exitstatus):
            session.exitstatus = NOTHING_TRIED

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        """Print the verdict of each backend."""
        verdicts = self._verdicts.items()
        lines = [f"{target} {verdict.covers}" for target, verdict in verdicts]
        if reason := self._reason(exitstatus):
            lines.append(f"{reason}, so the exit status is {NOTHING_TRIED}")
        if lines:
            terminalreporter.write_sep("=", "disteval")
        for line in lines:
            terminalreporter.write_line(visible(line))

    @cached_property
    def _verdicts(self) -> dict[str, Verdict]:
        return {
            target: judge(results.values(), *self.known[target])
            for target, results in self.records.items()
        }

    def _reason(self, exitstatus: int) -> str:
        """Return why a run without failures proves nothing; empty if it does."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.is_launched:
            return "no test was run"
        if exitstatus != pytest.ExitCode.OK:
            return ""
        verdicts = self._verdicts
        untried = [target for target, verdict in verdicts.items() if verdict.exit_code]
        if untried and len(untried) == len(verdicts):
            return "no rule was tried"
        if missing := [target for target in untried if target in self.named]:
            return f"no rule was tried on {', '.join(missing)}, which has to be tried"
        if self.skipped and not self.ran:
            return "every test was skipped"
        return ""


def _record(
    item: pytest.Item, report: pytest.TestReport
) -> tuple[str, Any, dict[str, Any] | None] | tuple[()]:
    """Return a backend, what is known of its class, and the result of a test of a rule.

    There is no result if the test was skipped before it tried the rule, and nothing at all before
    a test of a rule has ended, or if it is no such test.
    """
    params = item.callspec.params  # type: ignore[attr-defined]
    rule = params.get("rule")
    if not isinstance(rule, Rule) or (report.when != "call" and report.passed):
        return ()
    target, size = params["worlds"]
    worlds = item.funcargs.get("worlds")  # type: ignore[attr-defined]
    known = None
    if worlds is not None:
        known = contract(worlds.cls), worlds.cls.capabilities.why_not("multi_rank")
    result = item.stash.get(RESULT, None)
    if result is None and report.skipped:
        return target, known, None
    result = result or RuleResult.of(rule, size, "error")
    names = ("id", "level", "world_size", "outcome", "examples", "message")
    return target, known, {name: getattr(result, name) for name in names}

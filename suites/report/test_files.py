"""The JSON of a check is what its schema says, and a page is made of nothing else."""

import copy
import json
import re
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.check import check_backend, select_rules
from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.command import disteval, invoke
from suites.helpers.needs import framework, needs
from suites.helpers.processes import run_plainly
from suites.helpers.reports import page, why_no_run
from suites.mutants.broken.gathered import ReversedOrder
from suites.report.runs import EVALUATION, FIT, HEADER, TASK

pytestmark = needs("jsonschema")  # reads every report
SCHEMA = json.loads(resources.files("disteval.report").joinpath("report.schema.json").read_text())
EVAL = SCHEMA["$defs"]["eval"]["properties"].keys() | SCHEMA["properties"].keys()


def checked(backend: str | type[BaseDistBackend], *rules: str) -> dict[str, Any]:
    report = check_backend(backend, (1, 2), rules=select_rules(rules), examples=2)
    found: dict[str, Any] = json.loads(json.dumps(report.to_json()))
    return found


@pytest.fixture(scope="module")
def broken() -> dict[str, Any]:
    return checked(ReversedOrder, "2.1", "7.*")


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = framework("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


def test_a_check_is_as_its_schema_says(validator: Any, broken: dict[str, Any]) -> None:
    validator.validate(broken)
    validator.validate(checked("threads", "1.1", "9.1"))
    known = SCHEMA["$defs"]["check"]["properties"].keys() | SCHEMA["properties"].keys()
    assert broken.keys() == known
    assert broken["rules"][0].keys() == SCHEMA["$defs"]["result"]["properties"].keys()


@needs("torch")
def test_an_evaluation_is_as_its_schema_says(
    validator: Any, small_cifar10: Path, tmp_path: Path
) -> None:
    words = ("eval", "--world-size=1", "--json=e.json", f"--data={small_cifar10}")
    done = disteval(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "e.json").read_text())
    validator.validate(found)
    assert found.keys() == EVAL - {"predictions", "leases"}  # which were not asked for


def test_an_evaluation_of_a_task_is_as_its_schema_says(validator: Any) -> None:
    validator.validate(TASK)
    assert TASK.keys() == EVAL - {"framework", "dtype", "exact"}  # of ResNet-18
    for name in TASK.keys() - {"repeatable"}:
        assert why_no_run(TASK | {name: True}).startswith(f"{name}: True ")
    lost = TASK["leases"] | {"lost": [{}]}
    assert why_no_run(TASK | {"leases": lost}).startswith("leases.lost[0]: ")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value inside of a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, (dict, list)):
            yield from places(item, (*path, key))


@given(st.data())
def test_a_value_that_is_removed_or_of_another_type_is_refused_by_its_place(
    broken: dict[str, Any], data: st.DataObject
) -> None:
    found = copy.deepcopy(data.draw(st.sampled_from([broken, EVALUATION, FIT])))
    # Results of metrics are of any form.
    fixed = [place for place in places(found) if place[0] != "metrics" or len(place) == 1]
    *way, name = data.draw(st.sampled_from(sorted(fixed, key=str)))
    inside: Any = found
    for key in way:
        inside = inside[key]
    inside[name] = True  # no field that a page relies on is a truth value
    assert why_no_run(found).startswith(f"{as_path([*way, name])}: True ")
    if isinstance(inside, dict):
        del inside[name]
        missing = f"{as_path(way) or 'the whole'}: {name!r} is a required property"
        assert why_no_run(found) in ("", missing)


def as_path(way: list[Any]) -> str:
    return "".join(f".{k}" if str(k).isidentifier() else f"[{k!r}]" for k in way).removeprefix(".")


def test_a_failure_has_what_it_takes_to_see_it_again(broken: dict[str, Any]) -> None:
    [failure] = [r for r in broken["rules"] if r["outcome"] == "failed"]
    assert (failure["id"], failure["world_size"]) == ("2.1", 2)
    assert failure["counterexample"].startswith("gather [")
    words = f"{ReversedOrder.__name__} --rules 2.1 --world-size 2 --seed 0 --examples 2"
    assert failure["replay"] == f"disteval check {words}"
    assert {r["replay"] for r in broken["rules"] if r is not failure} == {""}


def test_what_survivors_saw_is_kept(broken: dict[str, Any]) -> None:
    [lost] = [r for r in broken["rules"] if r["id"] == "7.4" and r["world_size"] == 2]
    assert re.match(r"rank 1 .*Error after 3\.\d s", lost["observed"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        ("\udcff", "JSON"),
        ('{"seed": 1e400}', "1e400"),
        ("9" * 10_000, "1e+300"),
        ('{"loss": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"kind": 1, "kind": 2}', "'kind'"),
        ("[" * 900 + "]" * 900, "'object'"),
        ("[]", "'object'"),
        ("{}", "'schema_version'"),
        ('{"schema_version": 2, "kind": "eval"}', "schema_version: 2"),
        ('{"schema_version": 1, "kind": []}', "kind: []"),
        ('{"schema_version": 1, "kind": "check"}', "'version'"),
        (None, "run.json"),
    ],
)
def test_what_is_no_report_is_refused_by_its_name(
    tmp_path: Path, text: str | None, found: str
) -> None:
    path = tmp_path / "run.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    done = invoke("report", str(path), f"--html={tmp_path / 'page.html'}")
    assert done.exit_code == 2
    assert (str(path) in done.stderr, found in done.stderr) == (True, True), done.stderr


@needs("jinja2")
def test_a_table_of_results_is_refused_before_it_is_made(broken: dict[str, Any]) -> None:
    one = broken["rules"][0]
    diagonal = [one | {"id": f"1.{i}", "world_size": i} for i in range(1, 1001)]
    with pytest.raises(UsageError, match=r"1000 .* 1000 .* 100000"):
        page(("a file", broken | {"rules": diagonal}))


def one_rule_at_80_000_sizes() -> None:
    one = checked("threads", "1.1")
    rules = [one["rules"][0] | {"world_size": n} for n in range(80_000)]
    page(("", one | {"rules": rules, "contract": {"1.1": "required"}}))


def an_audit_of_40_000_cases() -> None:
    same = dict.fromkeys(["num_workers", "shuffle", "ids", "damage"], 0) | {"outcome": "right"}
    cases = [{"size": n, "batch_size": 1, "world_size": 1, **same} for n in range(40_000)]
    run = HEADER | {key: [] for key in ("assumes", "findings", "warnings")} | {"seconds": 1.0}
    run |= dict.fromkeys(["target", "backend", "reason", "details"], "") | {"kind": "audit"}
    page(("", run | {"cases": cases}))


def an_object_of_60_000_names_and_the_last_twice() -> None:
    names = "".join(f'"{n}": 0, ' for n in range(60_000))
    Path("r.json").write_text(f'{{{names} "59999": 0}}')
    assert "'59999'" in invoke("report", "r.json", "--html=p.html").stderr


@needs("jinja2")
@pytest.mark.parametrize("drawn", [
    one_rule_at_80_000_sizes,
    an_audit_of_40_000_cases,
    an_object_of_60_000_names_and_the_last_twice,
])  # fmt: skip
def test_what_once_took_more_than_a_minute_takes_seconds(drawn: Any, tmp_path: Path) -> None:
    # Of processor time: the machine may be busy.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (20, 20))"
    code = f"{limit}; from {__name__} import {drawn.__name__} as drawn; drawn()"
    done = run_plainly([sys.executable, "-c", code], tmp_path, 300.0)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_a_huge_file_is_not_read_and_a_huge_value_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: takes no room
    for endless in (path, Path("/dev/zero")):
        done = invoke("report", str(endless), f"--html={tmp_path / 'page.html'}")
        assert (done.exit_code, str(1 << 24) in done.stderr) == (2, True), done.stderr
    assert len(why_no_run(EVALUATION | {"metrics": "x" * 100_000})) < 300

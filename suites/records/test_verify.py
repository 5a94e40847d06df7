"""`disteval verify` on real runs of other harnesses, whole and damaged, and on plain records."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from disteval.errors import DataError

from suites.helpers.command import disteval, invoke
from suites.helpers.needs import framework, needs
from suites.records.harnesses import (
    SIZE,
    convert,
    run_inspect,
    run_lighteval,
    run_lm_eval,
    write_data,
)

pytestmark = needs("polars")
pl = framework("polars")
table = framework("disteval.records.table")

RUNS = {
    "lm_eval": run_lm_eval, "inspect_ai": run_inspect, "lighteval": run_lighteval,
    "every_eval_ever": run_lm_eval,
}  # fmt: skip
HARNESSES = [pytest.param(name, marks=needs(name)) for name in RUNS]


@pytest.fixture(scope="session", params=HARNESSES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the name of a harness: a run of all samples, and one by two jobs."""
    folder: Path = tmp_path_factory.mktemp("runs") / request.param
    folder.mkdir()
    run = RUNS[folder.name]
    run(folder / "whole")
    for number, half in enumerate((range(SIZE // 2), range(SIZE // 2, SIZE))):
        run(folder / f"job{number}", half)
        if folder.name == "every_eval_ever":
            convert(folder / f"job{number}")
    return folder


@pytest.fixture
def whole(runs: Path, tmp_path: Path) -> Path:
    """A copy of the run of all samples."""
    return shutil.copytree(runs / "whole", tmp_path / runs.name)


def verified(*words: object) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the report of ``disteval verify``."""
    report = Path(str(words[0])).parent / "report.json"
    if {"lighteval", "every_eval_ever"} & {*report.parts, Path(str(words[0])).name}:
        # They do not say how many samples there are.
        words += (f"--data={SIZE}",)
    done = invoke("verify", *map(str, words), f"--json={report}")
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, json.loads(report.read_text())


def kinds(report: dict[str, Any]) -> dict[str, int]:
    return {fact["kind"]: fact["count"] for fact in report["facts"] if fact["refutes"]}


def change(folder: Path, how: str) -> None:
    """Remove samples 3 and 4, repeat them with other answers, or remove their scores."""
    if folder.name == "inspect_ai":
        from inspect_ai.log import read_eval_log, write_eval_log

        [path] = folder.glob("*.eval")
        log = read_eval_log(str(path))
        some = [each for each in log.samples or () if each.id in (3, 4)]
        if how == "removed":
            log.samples = [each for each in log.samples or () if each not in some]
        elif how == "unscored":
            for each in some:
                each.scores = {}
        write_eval_log(log, str(path))
        if how == "repeated":
            log.samples = some
            for each in some:
                each.output.completion = "another"
            write_eval_log(log, str(path.with_name("again.eval")))
        return
    is_lighteval = folder.name == "lighteval"
    [path] = folder.rglob("details_*.parquet" if is_lighteval else "samples_*.jsonl")
    if is_lighteval:
        records = pl.read_parquet(path).to_dicts()
        some = [each for each in records if each["doc"]["id"] in ("3", "4")]
        another = {"model_response": some[0]["model_response"] | {"text": ["another"]}}
        unscored: dict[str, Any] = {"metric": {"em": None}}
    else:
        records = [json.loads(line) for line in path.read_text().splitlines()]
        some = [each for each in records if each["doc_id"] in (3, 4)]
        another = {"resps": [["another"]], "filtered_resps": ["another"]}
        unscored = {"exact_match": None}
    others = [each for each in records if each not in some]
    records = {
        "removed": others,
        "repeated": records + [each | another for each in some],
        "unscored": others + [each | unscored for each in some],
    }[how]
    if is_lighteval:
        pl.DataFrame(records, infer_schema_length=None).write_parquet(path)
    else:
        path.write_text("".join(json.dumps(each) + "\n" for each in records))


@pytest.mark.parametrize("how", ["whole", "removed", "repeated", "unscored"])
def test_a_real_run_is_proved_and_each_damage_is_named(how: str, whole: Path) -> None:
    if how != "whole":
        change(whole, how)
    if whole.name == "every_eval_ever":
        convert(whole)
    code, report = verified(whole)
    figures = {figure["policy"]: figure["value"] for figure in report["figures"]}
    if how == "whole":
        assert (code, kinds(report)) == (0, {})
        assert figures == {"20 scored": 13 / 20} and float(report["stated"]) == 13 / 20
        return
    assert code == 1
    [text] = [
        fact["text"] for fact in report["facts"] if fact["refutes"] and "3, 4" in fact["text"]
    ]
    if how == "removed":
        assert kinds(report) == {"missing": 2, "other figure": 1}
        assert figures == {"18 scored": 12 / 18, "all 20, missing as wrong": 12 / 20}
    elif how == "repeated":
        assert kinds(report) == {"repeated": 2} and "with another answer" in text
        assert figures["22 scored records, repeated ones each time"] == 14 / 22
    else:
        assert kinds(report) == {"unscored": 2, "other figure": 1}
        assert figures == {"18 scored": 12 / 18, "all 20, unscored as wrong": 12 / 20}


def test_jobs_are_one_result_and_a_lost_one_is_missed(runs: Path) -> None:
    first, second = runs / "job0", runs / "job1"
    code, report = verified(first, second)
    assert (code, kinds(report), report["counts"]["scored"]) == (0, {}, SIZE)
    code, report = verified(first)
    assert (code, kinds(report)) == (1, {"missing": 10})
    again = shutil.copytree(second, first.with_name("again"))
    code, report = verified(first, second, again)
    assert code == 1 and kinds(report)["file given twice"] == 1
    assert kinds(report)["repeated"] == 10
    shutil.rmtree(again)


@needs("inspect_ai")
def test_samples_that_failed_have_left_the_denominator(tmp_path: Path) -> None:
    run_inspect(tmp_path / "run", failing=(7, 8))
    code, report = verified(tmp_path / "run")
    assert (code, kinds(report)) == (1, {"errored": 2}) and report["counts"]["retried"] == 2
    assert report["says"].endswith("which is 0.6111 of 18 scored")
    assert [figure["text"] for figure in report["figures"]][1] == (
        "0.5500 of all 20, unscored as wrong"
    )
    log = next((tmp_path / "run").glob("*.eval"))
    log.write_bytes(log.read_bytes()[:-30])
    done = invoke("verify", str(log))
    assert done.exit_code == 2 and str(log) in done.stderr and "damaged" in done.stderr


@needs("lighteval")
def test_documents_of_two_splits_have_the_same_numbers(tmp_path: Path) -> None:
    run_lighteval(tmp_path / "run", splits=("test", "train"))
    done = invoke("verify", str(tmp_path / "run"), "--data=40")
    assert done.exit_code == 2 and "test, train" in done.stderr


def test_no_file_of_a_folder_is_left_out_without_a_word(whole: Path) -> None:
    if whole.name == "every_eval_ever":
        convert(whole)
    (whole / "other.jsonl.gz").write_text("{}")
    assert "other.jsonl.gz" in verified(whole)[1]["notes"][0]
    name = "again.eval" if whole.name == "inspect_ai" else "samples_sums_again.jsonl"
    for content in ("", '{"doc_id": 0, "do'):
        (whole / name).write_text(content)
        done = invoke("verify", str(whole))
        assert (done.exit_code, name in done.stderr) == (2, True)


def write_records(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        frame = pl.DataFrame(rows, infer_schema_length=None)
        (frame.write_csv if path.suffix == ".csv" else frame.write_parquet)(path)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("are_texts", [False, True])
def test_plain_records_are_held_to_the_data_and_the_published_figure(
    suffix: str, are_texts: bool, tmp_path: Path
) -> None:
    name = "q{}".format if are_texts else int
    rows = [{"id": name(i), "score": i % 4 / 2 if i % 5 else None} for i in range(100)]
    path = write_records(tmp_path / f"records.{suffix}", rows)
    ids = tmp_path / "ids.txt"
    ids.write_text("".join(f"{name(i)}\n" for i in range(100)))
    words = [path, "--id=id", "--score=score", f"--data={ids}"]
    code, report = verified(*words, "--figure=0.75")
    assert (code, kinds(report)) == (1, {"unscored": 20})
    code, report = verified(*words, "--figure=60%")
    assert (code, report["says"]) == (
        0, "the stated figure is 60%, which is 0.6000 of all 100, unscored as wrong"
    )  # fmt: skip
    code, report = verified(*words, "--figure=0.61")
    assert code == 1 and kinds(report)["other figure"] == 1
    ids.write_text("".join(f"{name(i)}\n" for i in range(1, 101)))
    code, report = verified(*words, "--figure=60%")
    assert kinds(report) == {"missing": 1, "not in the data": 1}


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    for number in (0, 2):
        write_records(tmp_path / f"part-{number:05}-of-00003.jsonl",
                      [{"id": 3 * i + number, "score": 1} for i in range(4)])  # fmt: skip
    code, report = verified(tmp_path, "--id=id", "--score=score", "--data=12")
    assert (code, kinds(report)) == (1, {"shard missing": 1, "missing": 4})
    assert "00001-of-00003" in report["facts"][0]["text"]
    assert "1, 4, 7, 10" in report["facts"][1]["text"]


MANY = b'{"id": "1", "score": 1}\n' * 200
BAD = {
    "a cut line": (b'{"id": 1, "score": 1}\n{"id": 2, "sc', "line 2: can't be read"),
    "mixed ids": (b'{"id": 1, "score": 1}\n{"id": "2", "score": 1}', "line 1 has 1 and line 2 has"),
    "mixed ids, text first": (MANY + b'{"id": 2, "score": 1}', "line 201 has 2"),
    "no id": (b'{"id": 1, "score": 1}\n{"score": 1}', "line 2: the id 'id' is None"),
    "a score of text": (b'{"id": 1, "score": "high"}', "line 1: the score 'score' is 'high'"),
    "no object": (b'{"id": 1, "score": 1}\n[2]', "line 2: .*expected an object"),
    "no number": (b"id,score\n1,0.5\n2,high\n", "record 2: the score 'score' is 'high'"),
    "a field twice": (MANY + b'{"id": "1", "score": 1, "score": 0}', "line 201: .*two values of"),
    "and with escapes": (MANY + rb'{"id": "1", "score": 1, "\u0073core": 0}', "line 201: .*two"),
    "a column twice": (b"id,score,score\n1,0,1\n", "two columns 'score'"),
    "half of Parquet": (b"PAR1" + bytes(50), "can't be read"),
    "half of an archive": (b"PK\3\4" + bytes(50), "can't be read"),
    "no records": (b"", "can't be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_their_line(name: str, tmp_path: Path) -> None:
    content, words = BAD[name]
    path = tmp_path / "bad"
    path.write_bytes(content)
    choice = table.Choice() if content.startswith(b"PK") else table.Choice("id", "score")
    with pytest.raises(DataError, match=words) as caught:
        table.read([path], choice)
    assert str(path) in str(caught.value)


def test_scores_that_are_no_numbers_or_in_objects(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"id": 0, "s": {"x": NaN}}\n{"id": 1, "s": {"x": true}}\n')
    code, report = verified(path, "--id=id", "--score=s.x", "--data=2")
    assert (code, kinds(report)) == (1, {"unscored": 1})
    assert report["notes"] == ["scores that are NaN or infinite, and count as none: 1"]


def test_a_certificate_holds_for_its_data_and_files_alone(tmp_path: Path) -> None:
    path = write_records(tmp_path / "r.jsonl", [{"id": i, "score": i % 2} for i in range(9)])
    written, data = tmp_path / "c.json", write_data(tmp_path)
    words = ("--id=id", "--score=score", "--data=9", f"--badge={tmp_path / 'b.svg'}")
    assert verified(path, *words, f"--certificate={written}", f"--digest=data={data}")[0] == 0
    found = json.loads(written.read_text())
    assert (found["ids"]["ranges"], found["counts"]["scored"]) == ([[0, 8]], 9)
    assert "each of 9 samples once" in (tmp_path / "b.svg").read_text()
    assert verified(written, "--data=9")[0] == verified(written, path)[0] == 0
    assert kinds(verified(written, "--data=10")[1]) == {"other samples": 9}
    path.write_text(path.read_text().replace("1}", "0}", 1))
    assert kinds(verified(written, path)[1]) == {"other file": 1, "file missing": 1}
    assert invoke("verify", str(written)).exit_code == 2
    again = tmp_path / "again.json"
    done = invoke("verify", str(path), *words[:3], "--badge=/dev/full", f"--certificate={again}")
    assert (done.exit_code, again.exists()) == (2, True)
    written.write_text(written.read_text().replace('"count": 9', '"count": 8'))
    done = invoke("verify", str(written), "--data=8")
    assert done.exit_code == 2 and "was changed after it was written" in done.stderr


@needs("jinja2")
def test_the_page_of_a_result_says_what_the_terminal_says(tmp_path: Path) -> None:
    path = write_records(tmp_path / "<b>.jsonl", [{"id": 0, "score": 1}])
    page = tmp_path / "page.html"
    done = invoke("verify", str(path), "--id=id", "--score=score", "--data=2", f"--html={page}")
    assert done.exit_code == 1 and "1 missing: 1" in done.stdout
    assert "1 missing: 1" in page.read_text() and "&lt;b&gt;.jsonl" in page.read_text()


def test_an_evaluation_writes_a_certificate_of_its_samples(tmp_path: Path) -> None:
    (tmp_path / "certified.py").write_text(
        "import numpy as np\n"
        "from disteval import Task\n"
        "from disteval.metrics import Accuracy\n\n"
        "def task():\n"
        "    samples = np.arange(9), np.arange(9) % 2\n"
        "    metrics = {'accuracy': Accuracy()}\n"
        "    return Task(\n"
        "        samples=samples, predict=lambda x: np.eye(2)[x % 2], metrics=metrics,\n"
        "        batch_size=2,\n"
        "    )\n"
    )
    written = tmp_path / "c.json"
    words = ("eval", "certified:task", "--backend=threads", "--world-size=2")
    done = disteval(tmp_path, *words, f"--certificate={written}")
    assert done.returncode == 0, done.stderr
    assert verified(written, "--data=9")[0] == 0
    assert kinds(verified(written, "--data=8")[1]) == {"other samples": 9}

"""``disteval compare``: two or more runs over the same samples, pair by pair."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from disteval.cli.options import HTML, JSON, Command, option
from disteval.cli.tables import print_line, table_console
from disteval.cli.terminal import write_each
from disteval.errors import UsageError
from disteval.extras import needs
from disteval.judging.report import header
from disteval.report.compared import (
    GROUP_COLUMNS,
    facts,
    groups,
    of_policies,
    verdict,
    write_comparisons,
)
from disteval.report.files import write_run
from disteval.text import visible

if TYPE_CHECKING:
    from disteval.records.compare import Comparison

_MOST_SHOWN = 20  # groups, and samples that part; the files have all


@click.command("compare", cls=Command)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="A B [C]...")
@option("--id", "id_field", metavar="FIELD", help="The field of each sample's id.")
@option("--score", metavar="FIELD", help="The field of the score, or the name of the metric.")
@option("--task", metavar="NAME", help="The task, where the files have several.")
@option("--group", metavar="FIELD", help="Compare each group as well, such as each language.")
@option(
    "--cluster", metavar="FIELD",
    help="What samples have in common that depend on each other, such as a document.",
)  # fmt: skip
@option("--same", is_flag=True, help="The runs must not differ: the exit status is 1 if they do.")
@JSON
@HTML
def compare_command(
    runs: tuple[Path, ...], id_field: str | None, score: str | None, task: str | None,
    group: str | None, cluster: str | None, same: bool, json_path: Path | None,
    html_path: Path | None,
) -> None:  # fmt: skip
    r"""Say whether B is better than A, of records that a harness wrote of the same samples.

    Each run is a file or folder of records, as of lm-eval, inspect_ai, lighteval or disteval, or
    any JSON lines, CSV or Parquet with --id and --score. Records are paired by id, and the test is
    one of paired data; of more than two runs, each is compared with A, and p-values are corrected.
    Runs of one model are compared by their answers as well, and so are all with --same.

    \b
    disteval compare base.jsonl new.jsonl --id id --score correct
    disteval compare base/ new/ --task arc_easy --score acc --html compare.html
    disteval compare base/ new/ --group subject --cluster document
    disteval compare one-gpu/ eight-gpus/ --same

    \b
    Exit status:
      0    the runs were compared, whatever the difference is
      1    with --same: samples differ
      2    they could not be compared
    """  # fmt: skip
    if len(runs) < 2:
        raise UsageError("there is nothing to compare; give two or more files or folders")
    with needs("disteval compare", "records"):
        from disteval.records.compare import compare, parting_of
        from disteval.records.table import Choice, read
    chosen = Choice(id_field, score, task, group, cluster)
    found = compare(  # whose records are not held longer than this call
        [(str(path), read([path], chosen)) for path in runs],
        by_group=bool(group), by_cluster=bool(cluster), answers=same,
    )  # fmt: skip
    parts, samples = [each.to_json() for each in found], []
    for comparison, run, part in zip(found, runs[1:], parts, strict=True):
        part["parted"], is_same = None, same or comparison.same_model
        if is_same or html_path is not None:
            changed = comparison.changed((runs[0], run), chosen)
            samples.append(changed.sort("outcome", maintain_order=True).iter_rows(named=True))
        if is_same:
            rows = changed.iter_rows(named=True)
            part["parted"] = {row["id"]: parting_of(row) for row in rows}
    report = {**header("compare"), "runs": [*map(str, runs)], "comparisons": parts}
    writers: list[Callable[[], None]] = [partial(write_run, json_path, report)]
    if html_path is not None:
        writers.append(partial(write_comparisons, html_path, parts, samples))
    status = write_each(writers)
    console = table_console()
    for comparison, part in zip(found, parts, strict=True):
        _show(console, part)
        if part["parted"] is not None:
            _show_parted(console, comparison, part["parted"])
    differ = any(each["parted"] or each["only_first"] or each["only_second"] for each in parts)
    sys.exit(status or int(same and differ))


def _show(console: Console, comparison: dict[str, Any]) -> None:
    policies = [each["policy"] for each in of_policies(comparison)]
    heads = [f"unscored {each}" for each in policies] if len(policies) > 1 else [""]
    if policies:
        _print_table(console, "", heads, facts(comparison))
    found = groups(comparison)
    if found:
        _print_table(console, "group", GROUP_COLUMNS, found[:_MOST_SHOWN])
    if len(found) > _MOST_SHOWN:
        print_line(console, f"… and {len(found) - _MOST_SHOWN} more groups, which --json has")
    for note in comparison["notes"]:
        print_line(console, note, "yellow")
    print_line(console, verdict(comparison), "bold")


def _print_table(
    console: Console, name: str, heads: Sequence[str], rows: list[tuple[str, list[str]]]
) -> None:
    columns = [Column(escape(head), justify="right", overflow="fold") for head in heads]
    table = Table(Column(name, overflow="fold"), *columns, show_header=any(heads))
    for label, texts in rows:
        table.add_row(*(escape(visible(text)) for text in (label, *texts)))
    console.print(table)


def _show_parted(
    console: Console, comparison: Comparison, parted: dict[int | str, dict[str, str]]
) -> None:
    total = len(comparison.frame)
    if not parted:
        answers = comparison.frame["answer"].count()
        what = "answers and scores" if answers else "scores (the records have no answers)"
        print_line(console, f"all {total} pairs have equal {what}")
        return
    kinds = Counter(each["kind"] for each in parted.values())
    told = ", ".join(f"{count} of {kind}" for kind, count in kinds.most_common())
    print_line(console, f"{len(parted)} of {total} pairs differ: {told}", "bold")
    for id_, parting in [*parted.items()][:_MOST_SHOWN]:
        print_line(console, f"  {id_!r:.60} {parting['kind']}: {parting['where']}")
    if len(parted) > _MOST_SHOWN:
        print_line(console, f"  … and {len(parted) - _MOST_SHOWN} more, which --json has")

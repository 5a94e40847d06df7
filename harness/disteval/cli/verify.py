"""``disteval verify``: say which samples a number of any harness is about."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from disteval.cli.options import CERTIFICATE, HTML, JSON, RESULTS, Command, OutputPath, option
from disteval.cli.tables import print_line, print_verdict, table_console
from disteval.cli.terminal import write_each, write_reports
from disteval.errors import UsageError
from disteval.extras import needs
from disteval.files import file_digest
from disteval.judging.report import SIGNS, header
from disteval.records.certificate import as_text, certify, read_certificate
from disteval.report.badge import draw_badge
from disteval.report.files import write_file

_FILES = "The files"


def _digested(_: object, __: object, given: tuple[str, ...]) -> dict[str, Path]:
    found = {}
    for each in given:
        name, _, path = each.partition("=")
        if not name or not Path(path).is_file():
            raise click.BadParameter(
                f"{each!r} is not NAME=FILE, such as weights=model.safetensors"
            )
        found[name] = Path(path)
    return found


@click.command("verify", cls=Command)
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@option(
    "--data", metavar="N|FILE", show_default="what the harness says",
    help="The samples: their number, a text of ids, or the data.",
)  # fmt: skip
@option("--data-id", metavar="FIELD", show_default="id", help="The field of the ids in --data.")
@option(
    "--figure", metavar="NUMBER", show_default="what the harness states",
    help="The published number, such as 0.6125 or 61.3%.",
)  # fmt: skip
@option("--task", metavar="NAME", help="The task, if there are several.", heading=_FILES)
@option("--score", metavar="NAME", help="The metric, or the field of the score.", heading=_FILES)
@option("--id", "id_field", metavar="FIELD", help="The field of the ids.", heading=_FILES)
@JSON
@HTML
@option("--badge", type=OutputPath(), metavar="FILE", help="Write a badge in SVG.", heading=RESULTS)
@CERTIFICATE
@option(
    "--digest", "digests", multiple=True, callback=_digested, metavar="NAME=FILE", heading=RESULTS,
    help="Write the digest of weights or code into the certificate.",
)  # fmt: skip
def verify_command(
    results: tuple[Path, ...], data: str | None, data_id: str | None, figure: str | None,
    task: str | None, score: str | None, id_field: str | None, json_path: Path | None,
    html_path: Path | None, badge: Path | None, certificate: Path | None,
    digests: dict[str, Path],
) -> None:  # fmt: skip
    r"""Say whether a number is about each sample once, from the records that a harness has written.

    RESULTS are the files or folders of lm-eval (samples and results), inspect_ai, lighteval, Every
    Eval Ever or disteval; with --id and --score, any JSON lines, CSV or Parquet. Files of several
    jobs are one result. The exit status is 0 if it is proved, 1 if it is not, and 2 if it could
    not be judged.

    \b
    disteval verify out/model --task gsm8k --score exact_match,strict-match
    disteval verify logs/2026-11-27_sums.eval --certificate sums.json
    disteval verify part-0000?-of-00008.jsonl --id id --score correct --data 1000 --figure 61.3%
    disteval verify sums.json --data test.jsonl
    """
    known = read_certificate(results[0])
    if known is not None and (badge or certificate or html_path or figure):
        raise UsageError(
            f"{results[0]} is a certificate, of which no page, badge or certificate is made; give "
            f"only --data, --json and results with it"
        )
    with needs("disteval verify", "records"):
        from disteval.records.table import BY_POSITION, Choice, read
        from disteval.records.verify import check_certificate, expected_of, verify
    if known is not None:
        harness = known["harness"]
    else:
        records = read(results, Choice(id_field, score, task))
        harness = records.harness
    expected = None
    if data is not None:
        expected = expected_of(data, data_id or id_field, harness in BY_POSITION)
    writers = []
    if known is not None:
        verdict, facts = check_certificate(results[0], known, expected, results[1:])
        found: dict[str, Any] = {"target": str(results[0]), "verdict": verdict._asdict(),
                                 "facts": [asdict(each) for each in facts]}  # fmt: skip
    else:
        verified = verify(records, expected, figure)
        found, verdict = verified.as_dict(), verified.judged
        title = f"{found['target']} {verdict.covers}"
        if badge is not None:
            picture = draw_badge(found["target"], verdict, title)
            writers.append(partial(write_file, "--badge", badge, picture))
        if certificate is not None:
            files = {name: file_digest(path) for name, path in digests.items()}
            text = as_text(certify(verified, files))
            writers.append(partial(write_file, "--certificate", certificate, text))
    console = table_console()
    for fact in found["facts"]:
        sign = SIGNS["failed" if fact["refutes"] else "unsupported"].glyph
        print_line(console, f"{sign} {fact['text']}", "red" if fact["refutes"] else "")
    if found.get("figures"):
        print_line(console, "; ".join(each["text"] for each in found["figures"]))
    for line in filter(None, [found.get("says"), *found.get("notes", ())]):
        print_line(console, line)
    print_verdict(console, found["target"], verdict)
    code = write_reports(header("verify") | found, found["target"], json_path, html_path)
    code = write_each(writers) or code
    click.get_current_context().exit(verdict.exit_code or code)

"""The page: a template, a style and a script in one file that makes no requests."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from importlib import metadata, resources
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disteval.arguments import check_output_file
from disteval.errors import UsageError
from disteval.extras import DISTRIBUTION, needs
from disteval.judging.report import OUTCOMES, SIGNS
from disteval.report import model
from disteval.report.charts import Picture
from disteval.report.evaluations import side_by_side
from disteval.report.files import write_file
from disteval.text import visible
from disteval.traces.waits import KINDS

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

Run = dict[str, Any]

MAX_SHOWN = 2_000_000
"""The most values that a page shows; they take less than half a minute."""


def check_page_path(option: str, path: Path) -> None:
    """Raise an error if an option's file can't be written, or Jinja2 is not installed."""
    check_output_file(option, path)
    _environment()


def write_page(
    path: Path, runs: Sequence[tuple[str, Run]], pictures: Sequence[Picture] = ()
) -> None:
    """Write the page of reports, each with the name of its file, and of traces.

    Raises:
        UsageError: The file can't be written, or the page would be too large.
        LibraryMissingError: Jinja2 is not installed.
    """
    write_file("--html", path, render(runs, pictures))


def render(runs: Sequence[tuple[str, Run]], pictures: Sequence[Picture] = ()) -> str:
    """Return the page's text, see `write_page`."""
    checks, evaluations, trainings, audited, numbers = (
        [(name, run) for name, run in runs if run["kind"] == kind]
        for kind in ("check", "eval", "fit", "audit", "verify")
    )
    columns = model.make_columns(checks)
    rows = model.make_rows(columns)
    return fill(
        "template.html",
        columns=columns,
        rows=rows,
        words=Counter(column.verdict.word for column in columns),
        failures=model.failures(columns, rows),
        faults=model.faults(rows),
        reasons=model.reasons(columns),
        runs=runs,
        audits=[(run, model.audit_verdict(run)) for _, run in audited],
        matrix_of=model.matrix_of,
        findings_of=model.audit_findings,
        largest=lambda finding: max(1e-9, *finding["fair"], *filter(None, finding["weights"])),
        evaluations=side_by_side(evaluations),
        trainings=trainings,
        numbers=numbers,
        pictures=pictures,
        kinds=KINDS,
        heads=[f"#{kind}" for kind in KINDS],
    )


def fill(template: str, scripts: Sequence[str] = (), **values: Any) -> str:
    """Return the page that a template over ``base.html`` makes of values, all of which it escapes.

    Args:
        template: The name of the template, which is beside this file.
        scripts: The names of scripts that the page runs after ``page.js``.
        **values: What the template shows.
    """
    style, script = _source("page.css"), "".join(map(_source, ("page.js", *scripts)))
    return (
        _environment()
        .get_template(template)
        .render(
            signs=SIGNS,
            verdicts=OUTCOMES,
            version=metadata.version(DISTRIBUTION),
            style=as_is(style),
            script=as_is(script),
            policy=(
                f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
                f"img-src data:; base-uri 'none'; form-action 'none'"
            ),
            **values,
        )
    )


def _environment() -> Environment:
    """Return Jinja2's environment for one page.

    It escapes every value, shows invisible characters, and refuses more values than a page takes.
    """
    with needs("--html", "report"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup

    drawn = count()

    def finalize(value: object) -> object:
        if next(drawn) > MAX_SHOWN:
            raise UsageError(
                f"the page would show more than {MAX_SHOWN} values, which takes more than a "
                f"minute; give fewer or smaller reports"
            )
        return value if isinstance(value, Markup) else visible(str(value))

    return Environment(
        loader=PackageLoader("disteval.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def as_is(text: str) -> Markup:
    """Mark text that needs no escaping, because it is ours or was escaped."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - the style and script beside this file


def _source(name: str) -> str:
    return resources.files("disteval.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"

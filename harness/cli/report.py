"""``disteval report``: what asv has measured, as one page of curves."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from html import escape
from itertools import groupby
from pathlib import Path

import click

from harness.errors import HarnessError, UsageError
from harness.history import Curve, Point, read_history

WIDTH, HEIGHT = 480, 120
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 140, 14, 22

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }}
h2 {{ margin-top: 2em; border-bottom: 1px solid #ccc; }}
h3 {{ font-weight: normal; color: #555; }}
figure {{ display: inline-block; margin: 0 1em 1em 0; }}
figcaption, li {{ max-width: 480px; font-size: 12px; }}
svg {{ border: 1px solid #ddd; }}
svg text {{ font-size: 11px; fill: #555; }}
polyline {{ fill: none; stroke: #36c; stroke-width: 1.5; }}
circle {{ fill: #36c; }}
.failed {{ fill: #c33; }}
</style>
<h1>{title}</h1>
<p>{summary}</p>
{sections}
</html>
"""


@click.command("report")
@click.option(
    "--history", type=click.Path(path_type=Path), default=Path(".asv/results"), show_default=True,
    help="asv's results folder.",
)  # fmt: skip
@click.option(
    "--html", "html_path", type=click.Path(path_type=Path), required=True,
    help="Write the page here.",
)  # fmt: skip
def report_command(history: Path, html_path: Path) -> None:
    r"""Draw what asv has measured: one page, one curve a benchmark and choice of parameters.

    The page needs no network and no script. Exits with 2 when there is nothing to draw.

    \b
    asv run
    disteval report --html benchmarks.html
    """
    try:
        curves = read_history(history)
        try:
            html_path.write_text(render(curves), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--html {html_path} can't be written: {error}") from error
    except HarnessError as error:
        click.echo(f"disteval report: {error}", err=True)
        sys.exit(2)
    drawn = sum(bool(curve.measured) for curve in curves)
    click.echo(f"{html_path}: {drawn} curves, {len(curves) - drawn} without a value")


def render(curves: list[Curve]) -> str:
    """Draw the page.

    Args:
        curves: As of `harness.history.read_history`.
    """
    commits = {point.commit for curve in curves for point in curve.points}
    machines = sorted({curve.machine for curve in curves})
    sections = [
        _section(name, list(group)) for name, group in groupby(curves, lambda c: c.benchmark)
    ]
    summary = f"{len(commits)} commits on {', '.join(machines)}; a point's title has the details."
    return _PAGE.format(
        title="disteval benchmarks", summary=escape(summary), sections="\n".join(sections)
    )


def _section(benchmark: str, curves: list[Curve]) -> str:
    unit = curves[0].unit
    lines = [f"<h2>{escape(benchmark)}{f' [{escape(unit)}]' if unit else ''}</h2>"]
    for (machine, environment), group in groupby(curves, lambda c: (c.machine, c.environment)):
        mine = list(group)
        lines.append(f"<h3>{escape(machine)}, {escape(environment)}</h3>")
        lines += [_figure(curve) for curve in mine if curve.measured]
        skipped = [curve for curve in mine if curve.skipped]
        failed = [curve for curve in mine if not curve.measured and not curve.skipped]
        lines += _listed("n/a: skipped, because it can't be run there", skipped)
        lines += _listed("failed", failed)
    return "\n".join(lines)


def _listed(what: str, curves: list[Curve]) -> list[str]:
    if not curves:
        return []
    rows = "".join(f"<li>{escape(_shown(curve))}</li>" for curve in curves)
    return [f"<details><summary>{len(curves)} {what}</summary><ul>{rows}</ul></details>"]


def _figure(curve: Curve) -> str:
    return f"<figure>{_svg(curve)}<figcaption>{escape(_shown(curve))}</figcaption></figure>"


def _shown(curve: Curve) -> str:
    return ", ".join(f"{name}={value}" for name, value in curve.parameters) or "no parameters"


def _svg(curve: Curve) -> str:
    """A curve from zero up: commits at equal distances, a cross at the foot where none was had."""
    top = max(point.value or 0.0 for point in curve.measured) or 1.0
    foot = HEIGHT - _BOTTOM
    step = (WIDTH - _LEFT - _RIGHT) / max(len(curve.points) - 1, 1)
    line, marks = [], []
    for i, point in enumerate(curve.points):
        x = _LEFT + i * step
        title = f"<title>{escape(_title(point, curve.unit))}</title>"
        if point.value is None or point.skipped:
            marks.append(
                f'<text class="failed" x="{x:.1f}" y="{foot}" text-anchor="middle">×{title}</text>'
            )
            continue
        y = foot - point.value / top * (foot - _TOP)
        line.append(f"{x:.1f},{y:.1f}")
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3">{title}</circle>')
    first, last = curve.points[0], curve.points[-1]
    ends = _label(_LEFT, HEIGHT - 6, f"{_day(first)} {first.commit[:8]}")
    if len(curve.points) > 1:
        right = f"{_day(last)} {last.commit[:8]}"
        ends += _label(WIDTH - _RIGHT, HEIGHT - 6, right, anchor="end")
    side = WIDTH - _RIGHT + 8
    scale = _label(side, _TOP + 4, f"{top:.4g} {curve.unit}") + _label(side, foot + 4, "0")
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f'<polyline points="{" ".join(line)}"/>{"".join(marks)}{scale}{ends}</svg>'
    )


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _title(point: Point, unit: str) -> str:
    if point.skipped:
        outcome = "n/a: skipped"
    else:
        outcome = "failed" if point.value is None else f"{point.value:.6g} {unit}".strip()
    return f"{point.commit}, {_day(point)}: {outcome}"


def _day(point: Point) -> str:
    return datetime.fromtimestamp(point.date / 1000, tz=timezone.utc).strftime("%Y-%m-%d")

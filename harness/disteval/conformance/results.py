"""The results of a check: one for each rule and world size, and the report of all of them."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from disteval.conformance.rule import RULES, Rule
from disteval.conformance.verdict import judge, mistakes, order
from disteval.contract import BaseDistBackend
from disteval.judging.report import BaseReport, Verdict, header, replay

DEFAULT_TIMEOUT = 20.0


@dataclass
class RuleResult:
    """The result of one rule at one world size.

    Attributes:
        id: The rule's number.
        name: The rule's name.
        sentence: What a backend has to do.
        level: ``required``, ``optional`` or ``stochastic``.
        world_size: The number of ranks.
        outcome: ``passed``, ``failed``, ``unsupported`` (the class declares so, or the rule does
            not apply) or ``error`` (the rule could not be judged, for instance because a rank was
            lost once and not again).
        examples: The number of examples that were tried.
        seconds: The time that the rule took.
        message: The failure, or why the rule was not judged, or not tried as far as elsewhere.
        failure: How the rule failed, in a few words that do not depend on the world size.
        evidence: The title and the text of each traceback, stack and output of ranks.
        counterexample: The smallest failing example found.
        cause: The likely cause of the failure and what to do about it, if it could be seen.
        usually: What people get wrong who break this rule, of a failure whose cause was not seen.
        observed: What the ranks did, for rules that report more than that they passed, and for
            losses that did not recur.
        replay: The command that repeats this rule at this world size, if it failed or lost ranks.
        also: The rules with their world sizes whose failures show the same mistake, of the first.
    """

    id: str
    name: str
    sentence: str
    level: str
    world_size: int
    outcome: str = "passed"
    examples: int = 0
    seconds: float = 0.0
    message: str = ""
    failure: str = ""
    evidence: list[tuple[str, str]] = field(default_factory=list)
    counterexample: str = ""
    observed: str = ""
    replay: str = ""
    cause: str = ""
    usually: str = ""
    also: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def of(
        cls, rule: Rule, world_size: int, outcome: str = "passed", message: str = ""
    ) -> RuleResult:
        """Return a result of that rule."""
        return cls(
            rule.number, rule.name, rule.sentence, rule.level, world_size, outcome, message=message
        )

    def not_judged(self, why: str) -> RuleResult:
        """Return this failure as a rule that was not judged, because ranks were lost or late."""
        nothing: dict[str, Any] = dict.fromkeys(
            ("failure", "counterexample", "cause", "usually"), ""
        )
        return replace(self, outcome="error", message=why, observed=self.message, **nothing)


@dataclass
class CheckReport(BaseReport):
    """The report of a check of a backend.

    Attributes:
        target: The backend, as it was named.
        cls: Its class.
        seed: The seed of drawing.
        examples: The number of drawn examples for each rule and world size.
        timeout: The seconds that one example may take.
        launcher: The launcher that was asked for, or None.
        seconds: The time of the whole check. The times of its rules add up to more than that,
            because they run side by side.
        rules: All results, by world size and rule.
    """

    target: str
    cls: type[BaseDistBackend]
    seed: int
    examples: int
    timeout: float = DEFAULT_TIMEOUT
    launcher: str | None = None
    seconds: float = 0.0
    rules: list[RuleResult] = field(default_factory=list)

    @cached_property
    def judged(self) -> Verdict:
        """The verdict of all results; see `disteval.conformance.verdict.judge`."""
        return judge(map(vars, self.rules), contract(self.cls), self.single_rank)

    @property
    def single_rank(self) -> str:
        """Why the class declares that it can't do more than one rank; empty if it can."""
        return self.cls.capabilities.why_not("multi_rank")

    def replay(self, result: RuleResult) -> str:
        """Return the command that repeats one rule at one world size."""
        options = {
            "rules": result.id,
            "world-size": result.world_size,
            "seed": self.seed,
            "examples": self.examples,
            "timeout": self.timeout if self.timeout != DEFAULT_TIMEOUT else None,
            "launcher": self.launcher,
        }
        return replay("check", self.target, options)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values, as ``report.schema.json`` describes them."""
        for first, *others in mistakes(map(vars, self.rules)):
            first["also"] = [(other["id"], other["world_size"]) for other in others]
        values = asdict(self)
        del values["seconds"], values["cls"]
        verdict = self.judged
        distribution, version = provider_of(self.cls)
        return {
            **header("check"),
            "target_distribution": distribution,
            "target_version": version,
            "verdict": verdict.word,
            "covers": verdict.covers,
            "contract": contract(self.cls),
            "single_rank": self.single_rank,
            **values,
        }


def contract(cls: type[BaseDistBackend]) -> dict[str, str]:
    """Return the level of each rule that applies to a class, by its number, in their order."""
    mine = [rule for rule in RULES if issubclass(cls, rule.of)]
    return {rule.number: rule.level for rule in sorted(mine, key=lambda rule: order(rule.number))}


def provider_of(cls: type) -> tuple[str, str]:
    """Return the name and the version of the distribution that provides a class.

    They tell the reports of versions apart. Both are empty if no installed distribution does. The
    files count, not the names: a package in the working directory hides an installed one of the
    same name, and has its version only if every module of the two is the same, as after
    ``pip install .`` in a clone.
    """
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if path is None:
        return "", ""
    file = Path(path).absolute()
    for found in distributions():
        # If its files are damaged, it provides nothing.
        with suppress(OSError, ValueError, LookupError, AttributeError):
            if _has(found, file, cls.__module__) or _is_editable(found, file, cls.__module__):
                return found.metadata["Name"] or "", found.version or ""
    return "", ""


def _has(found: Distribution, file: Path, module: str) -> bool:
    """Return whether a distribution has installed a module's file, or the same package."""
    root = file.parents[module.count(".") + (file.stem == "__init__")]
    name = file.relative_to(root).as_posix()
    recorded, base = _recorded(found), _base(found)
    if name not in recorded or root == base:
        return name in recorded
    package = f"{module.partition('.')[0]}/"
    modules = [one for one in recorded if one == name or one.startswith(package)]
    same = (one for one in modules if one.endswith(".py") or one == name)
    return all((root / one).read_bytes() == (base / one).read_bytes() for one in same)


def _is_editable(found: Distribution, file: Path, module: str) -> bool:
    """Return whether a distribution is installed as a link to the folder with a module's file."""
    where = json.loads(found.read_text("direct_url.json") or "{}")
    if not where.get("dir_info", {}).get("editable"):
        return False
    source = Path(url2pathname(urlsplit(where["url"]).path))
    top = module.partition(".")[0]
    if top in (found.read_text("top_level.txt") or "").split():
        return file.is_relative_to(source)
    links = [_base(found) / name for name in _recorded(found) if name.endswith(".pth")]
    added = [path for link in links for path in link.read_text(encoding="utf-8").splitlines()]
    names = [Path(root, *module.split(".")) for root in added]
    return file.with_suffix("") in names or file.parent in names


def _recorded(found: Distribution) -> list[str]:
    """Return the names of the files that a distribution has installed."""
    return [line.partition(",")[0] for line in (found.read_text("RECORD") or "").splitlines()]


def _base(found: Distribution) -> Path:
    return Path(str(found.locate_file(""))).absolute()

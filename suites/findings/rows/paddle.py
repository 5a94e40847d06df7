"""What paddle.distributed does."""

from __future__ import annotations

from suites.findings.table import Finding

_DOCS = (
    "https://www.paddlepaddle.org.cn/documentation/docs/en/2.4/api/paddle/distributed/"
    "destroy_process_group_en.html"
)

FINDINGS = [
    Finding(
        slug="paddle-init-after-destroy",
        library="paddlepaddle 3.3.1",
        environment="paddle",
        command="",  # the program of the report shows it
        says="",
        subject="`init_parallel_env` after `destroy_process_group`",
        case="two ranks join, leave and join again",
        what="the second `init_parallel_env` returns the group that was destroyed, of two ranks, "
        "while `is_initialized` stays false, without an error; collectives of the default group "
        "raise `RuntimeError`, and a program that asks `is_initialized` first takes each rank for "
        "a world of its own",
        promise=f'[the environment "will be deinitialized"]({_DOCS})',
        kind="defect",
    ),
]

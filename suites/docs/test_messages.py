"""Messages that pages show are those of the program, word by word.

A page says ``…`` for what it leaves out, and seconds and folders may be others.
What is printed by Python that a page shows is compared in `test_blocks`. Other tests of messages
hold the class and the values that were found to what is right, and leave the words to this file.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disteval import WorldError, evaluate
from disteval.world import World

from suites.docs.pages import blocks_of, write_files
from suites.helpers.command import disteval
from suites.helpers.needs import needs
from suites.helpers.thread_world import run_ranks

Make = Callable[[Path, pytest.LogCaptureFixture], str]


def a_hang(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    with pytest.raises(WorldError) as caught, World("torch_cpu", 3) as world:
        world.run(nothing)  # ranks have imported this file before their two seconds begin
        world.run(hang_on_1, timeout=2.0)
    return str(caught.value)


def nothing(backend: Any) -> None: ...


def hang_on_1(backend: Any) -> None:
    backend.all_gather_object("first")
    if backend.rank == 1:
        time.sleep(600)
    backend.all_gather_object("second")


def a_stream_that_ends_early(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    def rank(backend: Any) -> Any:
        last = 31 - (backend.rank == 1)
        return evaluate(lambda batch: batch, lambda: iter(range(last)), {}, backend, 4)

    one, other = map(str, run_ranks(2, rank))
    assert one == other
    return one


def a_damaged_checkpoint(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    from suites.estimator.test_folder import flip, make, train

    train(make(folder / "run"), 8)
    flip(folder / "run" / "epoch_8.pt", 1000)
    make(folder / "run").resume(folder / "run")
    return caplog.messages[-1]


def a_loop_that_counts_twice(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    write_files("docs/audit.md", folder)
    return disteval(folder, "audit", "my_eval:evaluate", "--case", "N=2,B=1,W=3").stdout


def a_backend_that_loses_tuples(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    target = "suites.mutants.broken.objects:TupleBecomesList"
    return disteval(folder, "check", target, "--rules=2.2", "--world-size=2").stdout


def a_backend_whose_ranks_all_send(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    target = "suites.mutants.broken.broadcasts:OthersMustBeAbleToSend"
    return disteval(folder, "check", target, "--rules=3.3", "--world-size=2").stdout


@pytest.mark.parametrize(
    ("pages", "shown", "make"),
    [
        ("docs/samples.md", "the stream", a_stream_that_ends_early),
        ("docs/report.md", "likely cause", a_backend_that_loses_tuples),
        ("docs/report.md", "usually", a_backend_whose_ranks_all_send),
        pytest.param("docs/suites.md", "no progress", a_hang, marks=needs("torch_cpu")),
        pytest.param(
            "docs/estimator.md", "the checkpoint", a_damaged_checkpoint, marks=needs("torch")
        ),
        pytest.param(
            "README.md docs/audit.md", "✗ counted", a_loop_that_counts_twice, marks=needs("torch")
        ),
    ],
)
def test_a_page_shows_the_message_of_the_program(
    pages: str, shown: str, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = plain(make(tmp_path, caplog))
    for page in pages.split():
        blocks = [block.code for block in blocks_of(page) if block.language == "text"]
        [message] = [code.partition("\n\n")[0] for code in blocks if code.startswith(shown)]
        assert re.search(".*".join(map(re.escape, plain(message).split("…"))), made), made


def plain(text: str) -> str:
    """Return a text in one line, with what may vary left out."""
    return re.sub(r"\S*/(?=run/)|\b\d+(?= s\b)", "", " ".join(text.split()))

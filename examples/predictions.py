"""Write the predictions to a file, in the order of the data set.

Each rank writes its part to a folder. What was interrupted goes on where it stopped. Rank 0 gets a
reader, which yields predictions in the order of the data set and never holds all of them.

python examples/predictions.py
"""

from pathlib import Path

from disteval import BaseDistBackend, get_dist_backend, predict_all

QUESTIONS = [f"{n % 7} + {'9' * (n % 5 + 1)}" for n in range(103)]


def answer(questions: list[str]) -> list[str]:
    """Add up two numbers."""
    return [str(sum(map(int, question.split(" + ")))) for question in questions]


def run(backend: BaseDistBackend, folder: Path) -> None:
    """Write answers.txt into the folder; every rank calls this."""
    answers = predict_all(answer, QUESTIONS, backend, batch_size=8, folder=folder)
    if answers is not None:
        with (folder / "answers.txt").open("w") as file:
            file.writelines(f"{line}\n" for line in answers)


if __name__ == "__main__":
    run(get_dist_backend(), Path("answers"))

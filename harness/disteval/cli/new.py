"""``disteval new``: write a task to start from."""

from __future__ import annotations

import re
import sys
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path

import click

from disteval.arguments import unwritable
from disteval.errors import UsageError

FRAMEWORKS = ("torch", "jax", "tensorflow", "sklearn")
_NAME = "my_task"


@click.command("new")
@click.argument("name", default=_NAME)
@click.option(
    "--framework", type=click.Choice(FRAMEWORKS), default="torch",
    help="The framework of the model.",
)  # fmt: skip
def new_command(name: str, framework: str) -> None:
    r"""Write the file NAME.py with a task to start from.

    The file is a small task that can be evaluated as it is, with the command that is printed. Put
    your own data, model and metrics into it. An existing file is never overwritten.

    \b
    disteval new
    disteval new my_texts --framework jax
    """
    path = Path(f"{name.removesuffix('.py')}.py")
    module = path.stem
    if not module.isidentifier() or module != name.removesuffix(".py"):
        raise UsageError(
            f"{name!r} can't be the name of a module; give letters, digits and underscores, such "
            f"as {_NAME}, in the folder where the file is to be"
        )
    folder = {str(Path.cwd()), ""}
    found = PathFinder.find_spec(module, [place for place in sys.path if place not in folder])
    if found is not None or module in sys.stdlib_module_names or Path(module).is_dir():
        raise UsageError(
            f"there is a module or folder {module!r} already, and only one of it and {module}.py "
            f"could be imported; give another name, such as {module}_task"
        )
    source = resources.files("disteval.cli").joinpath("new_task").joinpath(f"{framework}.py")
    text = source.read_text(encoding="utf-8").replace(_NAME, path.stem)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path} exists, and is left as it is; give another name, such as {path.stem}_2"
        ) from None
    except OSError as error:
        raise unwritable("the file", path, error) from error
    [command] = re.findall(r"disteval eval .*(?=\.\"\"\")", text)
    click.echo(f"{path} is written; evaluate it with\n\n    {command}\n")

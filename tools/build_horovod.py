"""Build Horovod for the TensorFlow of this environment, once, and print the path of the wheel.

Horovod 0.28.1 is the last release, and does not build against the TensorFlow of today: it takes
changes of a line each, see `CHANGES`. The wheel is kept in the user's cache folder, under a name
that holds what it was built from::

    pip install tensorflow-cpu==2.21.0
    pip install "$(python tools/build_horovod.py)" --no-deps

``--unrepaired`` leaves out the change that repairs something, to show what happens without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HOROVOD = "0.28.1"

Change = tuple[str, str, str]
"""A file, the text to replace, and the new text."""

CHANGES: tuple[Change, ...] = (
    # It includes a header that TensorFlow no longer ships; XLA is not used here.
    (
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
    ),
    # An empty list of ranks leaves the stall inspector without anybody to miss, under Gloo.
    (
        "horovod/common/gloo/gloo_controller.cc",
        "global_ranks_.reserve(size_);",
        "global_ranks_.resize(size_);",
    ),
    # Nearly all of the time goes into headers, so the compiler reads many sources as one, but for
    # one whose names clash. It need not optimise, for Gloo's sockets set the pace.
    (
        "CMakeLists.txt",
        'string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO '
        '"${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")',
        'set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O0 -DNDEBUG")\nset(CMAKE_UNITY_BUILD ON)',
    ),
    (
        "CMakeLists.txt",
        "add_subdirectory(third_party/compatible17_gloo)",
        "add_subdirectory(third_party/compatible17_gloo)\nset_source_files_properties("
        "${PROJECT_SOURCE_DIR}/third_party/compatible17_gloo/gloo/allreduce_local.cc "
        "TARGET_DIRECTORY compatible17_gloo PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)",
    ),
    # TensorFlow's part links a copy of Gloo that is compiled as C++17, and nothing links this one.
    (
        "CMakeLists.txt",
        "add_subdirectory(third_party/gloo)",
        "add_subdirectory(third_party/gloo EXCLUDE_FROM_ALL)",
    ),
)
"""What is changed before it is built."""

REPAIR = CHANGES[1]
"""The change that is not there to make it build."""

BUILD_TOOLS = (
    "setuptools<=80", "wheel", "packaging", "cffi", "psutil", "pyyaml", "cloudpickle", "cmake<4",
)  # fmt: skip

OPTIONS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
}


def main() -> None:
    """Build the wheel unless it exists already, and print its path."""
    changes = CHANGES
    if "--unrepaired" in sys.argv[1:]:
        changes = tuple(change for change in CHANGES if change != REPAIR)
    folder = cache_folder(changes)
    wheels = sorted(folder.glob("horovod-*.whl"))
    if not wheels:
        with tempfile.TemporaryDirectory() as scratch:
            wheels = [build(Path(scratch), folder, changes)]
    print(wheels[0])


def cache_folder(changes: tuple[Change, ...]) -> Path:
    """Return the folder of the wheel for this TensorFlow, this Python and these changes."""
    found = (_version(name) for name in ("tensorflow-cpu", "tensorflow"))
    tensorflow = next(filter(None, found), "")
    if not tensorflow:
        raise SystemExit("install TensorFlow first: pip install tensorflow-cpu==2.21.0")
    key = repr((HOROVOD, tensorflow, sys.implementation.cache_tag, changes, OPTIONS))
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return root / "disteval" / f"horovod-{HOROVOD}-{tensorflow}-{digest}"


def _version(name: str) -> str:
    try:
        return f"{name}-{metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return ""


def build(scratch: Path, folder: Path, changes: tuple[Change, ...]) -> Path:
    """Fetch the source archive, change it, build a wheel, and move the wheel to ``folder``."""
    if shutil.which("g++") is None:
        raise SystemExit("building Horovod takes a C++ compiler, g++: apt-get install g++")
    pip("install", *BUILD_TOOLS)
    pip(
        "download", "--no-deps", "--no-binary=horovod", "--no-build-isolation",
        f"--dest={scratch}", f"horovod=={HOROVOD}",
    )  # fmt: skip
    shutil.unpack_archive(scratch / f"horovod-{HOROVOD}.tar.gz", scratch)
    source = scratch / f"horovod-{HOROVOD}"
    for name, old, new in changes:
        text = (source / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name} of Horovod {HOROVOD} does not hold {old!r} once")
        (source / name).write_text(text.replace(old, new))
    pip(
        "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={scratch}", str(source),
        environment=OPTIONS | {"MAKEFLAGS": f"-j{os.cpu_count() or 1}"},
    )  # fmt: skip
    [wheel] = scratch.glob("horovod-*.whl")
    folder.mkdir(parents=True, exist_ok=True)
    # Under its own name only once it is whole: two builds may run at a time.
    draft = folder / f"{wheel.name}.{os.getpid()}"
    shutil.copyfile(wheel, draft)
    return draft.rename(folder / wheel.name)


def pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    """Run pip and send its output to standard error."""
    tools = Path(sys.executable).parent  # where pip puts cmake
    subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        env=os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"} | (environment or {}),
        stdout=sys.stderr,
        check=True,
    )


if __name__ == "__main__":
    main()

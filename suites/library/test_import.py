"""``import disteval`` is light."""

from __future__ import annotations

import subprocess
import sys

from suites.helpers.needs import needs


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@needs("torch", "jax", "tensorflow")
def test_importing_the_harness_imports_no_framework() -> None:
    loaded = _python(
        "import sys, disteval, disteval.cli, disteval.worlds\n"
        "print({name.partition('.')[0] for name in sys.modules})"
    )
    for framework in ("torch", "jax", "tensorflow", "paddle", "mlx", "mpi4py", "horovod", "ray"):
        assert f"'{framework}'" not in loaded
    assert "'disteval_backends'" not in loaded

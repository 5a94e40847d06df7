"""``import disteval`` is light."""

import subprocess
import sys

from suites.helpers.needs import needs


@needs("torch", "jax", "tensorflow")
def test_importing_and_using_the_harness_imports_no_framework() -> None:
    code = (
        "import sys, disteval, disteval.cli, disteval.world\n"
        "assert 'disteval_backends' not in sys.modules\n"
        "from disteval.metrics import Accuracy, from_torchmetrics\n"
        "assert Accuracy()([[0, 1]], [1]) == {'top1': 1.0}\n"
        "try:\n    from_torchmetrics(1)\n"
        "except ValueError as error:\n    assert 'int' in str(error)\n"
        "print({name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    libraries = "torch torchmetrics sklearn jax tensorflow paddle mlx mpi4py horovod ray"
    for name in libraries.split():
        assert f"'{name}'" not in loaded

"""What mmeval does."""

from __future__ import annotations

from suites.findings.table import Finding

_PAGE = "https://mmeval.readthedocs.io/en/latest/design/distributed_backend.html"
_INITIALIZED = f"[`is_initialized`]({_PAGE}) says whether communication has been initialized"

FINDINGS = [
    Finding(
        slug="mmeval-mpi4py-mpich",
        library="mmeval 0.2.1",
        environment="mmeval",
        command="check suites.findings.adapters:MMEvalMPI4Py --rules 1.1 --world-size 2",
        says="rule 1.1, world size 2: broken",
        subject="`mpi4py`",
        case="two ranks under MPICH",
        what="`is_initialized` is false, because it looks for `OMPI_COMM_WORLD_SIZE`, which only "
        "Open MPI sets: each rank takes itself for a world of its own",
        promise=_INITIALIZED,
        kind="defect",
    ),
    Finding(
        slug="mmeval-broadcast-pickles-everywhere",
        library="mmeval 0.2.1",
        environment="mmeval",
        command="check suites.findings.adapters:MMEvalTorchCPU --rules 3.3 --world-size 2 "
        "--timeout 5",
        says="rule 3.3, world size 2: broken",
        subject="`torch_cpu`, `broadcast_object`",
        case="rank 1 passes an object that can't be pickled to a broadcast from rank 0",
        what="rank 1 raises, and rank 0 waits for ever, because the arguments of all ranks are "
        "pickled",
        promise="its docstring says that the object is broadcast from the source process",
        kind="defect",
    ),
    Finding(
        slug="mmeval-rank-before-joining",
        library="mmeval 0.2.1",
        environment="mmeval",
        command="check suites.findings.adapters:MMEvalTorchCPU --rules 1.3 --world-size 2",
        says="rule 1.3, world size 2: broken",
        subject="`torch_cpu`",
        case="any rank, before the group is joined",
        what="`rank` and `world_size` raise `ValueError`",
        promise="by design of torch; mmeval offers `non_dist` for this case",
        kind="documented",
    ),
    Finding(
        slug="mmeval-non-dist-gather-aliases",
        library="mmeval 0.2.1",
        environment="mmeval",
        command="check suites.findings.adapters:MMEvalNonDist --rules 4.1 --world-size 1",
        says="rule 4.1, world size 1: broken",
        subject="`non_dist`, `all_gather_object`",
        case="gather a dict and change the result",
        what="the input changes, because it is the same object: code that works on one process "
        "differs on two",
        promise="its docstring says that the given object is returned",
        kind="documented",
    ),
    Finding(
        slug="mmeval-non-dist-broadcast-src",
        library="mmeval 0.2.1",
        environment="mmeval",
        command="check suites.findings.adapters:MMEvalNonDist --rules 3.4 --world-size 1",
        says="rule 3.4, world size 1: broken",
        subject="`non_dist`, `broadcast_object`",
        case="broadcast from rank -1",
        what="no error",
        promise="its docstring says that the given object is returned",
        kind="documented",
    ),
    Finding(
        slug="mmeval-paddle-fluid",
        library="mmeval 0.2.1",
        environment="paddle",
        command="check suites.findings.adapters:MMEvalPaddle --rules 1.3 --world-size 1",
        says="AttributeError",
        subject="`paddle_dist` with paddlepaddle 3.3.1",
        case="any rank",
        what="`is_initialized` raises `AttributeError`, because it uses `paddle.fluid`, which "
        "Paddle no longer has",
        promise=_INITIALIZED,
        kind="defect",
    ),
]

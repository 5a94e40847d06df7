"""What torch's collectives and samplers do; 2.13.0 is not its newest release."""

from __future__ import annotations

from suites.findings.table import Finding, of_loop

_SHARDS = "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data"

FINDINGS = [
    Finding(
        slug="torch-gather-of-what-cannot-be-pickled",
        library="torch 2.13.0",
        environment="mmeval",
        command="check suites.findings.adapters:TorchPlain --rules 6.1 --world-size 2 --timeout 5",
        says="rule 6.1, world size 2: broken",
        subject="`all_gather_object`",
        case="rank 0 of two gathers an object that can't be pickled",
        what="rank 0 raises, and rank 1 waits until its timeout, 30 minutes by default",
        promise="torch does not promise an error on all ranks",
        kind="documented",
        newest=False,
    ),
    Finding(
        slug="torch-broadcast-keeps-the-object",
        library="torch 2.13.0",
        environment="mmeval",
        command="check suites.findings.adapters:TorchPlain --rules 4.1 --world-size 2",
        says="rule 4.1, world size 2: broken",
        subject="`broadcast_object_list`",
        case="rank src changes the result",
        what="the input changes, because the list on src keeps the object itself",
        promise="[documented](https://docs.pytorch.org/docs/stable/distributed.html): the list is "
        "changed in place",
        kind="documented",
        newest=False,
    ),
    of_loop(
        "torch-distributed-sampler",
        "other_loops:torch_distributed_sampler",
        subject="sums over `DistributedSampler`, and `all_reduce`",
        what="the sampler repeats samples",
        newest=False,
    ),
    of_loop(
        "torch-drop-last",
        "other_loops:torch_drop_last",
        subject="the same with `drop_last=True`",
        what="the sampler drops the tail",
        newest=False,
    ),
    of_loop(
        "torch-stream-of-every-worker",
        "other_loops:torch_stream_of_every_worker",
        subject="a stream through a loader with workers, each of which reads all of it",
        what="each worker's samples count",
        promise=f"the [documentation]({_SHARDS}.IterableDataset) warns of it",
        newest=False,
    ),
    Finding(
        slug="torch-gloo-broadcast-strided",
        library="torch 2.13.0",
        environment="mmeval",
        command="check suites.findings.adapters_over_torch:TorchStrided --rules 3.2 --world-size 2",
        says="rule 3.2, world size 2: broken",
        subject="`broadcast` over gloo of a tensor that is not contiguous",
        case="broadcast the first column of `[[1, 2], [3, 4]]`",
        what="the other ranks get `[1, 2]` instead of `[1, 3]`, without an error; `scatter` and "
        "`reduce` do the same",
        promise="[the tensor of `src` is broadcast to the whole group](https://docs.pytorch.org/docs/"
        "stable/distributed.html#torch.distributed.broadcast)",
        kind="defect",
        thread="https://github.com/pytorch/pytorch/issues/192920",
        newest=False,
    ),
]

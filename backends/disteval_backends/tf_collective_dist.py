"""TensorFlow's own multi-worker collectives, without Horovod."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from disteval.contract import Capabilities, No, Rendezvous
from disteval.errors import UsageError
from disteval.extras import when_used

from disteval_backends._host_arrays import Bytes, HostArrayDist

if TYPE_CHECKING:
    import tensorflow as tf
else:  # a leader reads this class, and its ranks use it
    tf = when_used("tensorflow")


class TFCollectiveDist(HostArrayDist):
    """Object collectives over `tf.distribute.MultiWorkerMirroredStrategy`, one worker a rank."""

    library: ClassVar[str] = "tensorflow-cpu"
    preload: ClassVar[tuple[str, ...]] = ("tensorflow",)
    capabilities: ClassVar[Capabilities] = Capabilities(
        bounded_waits=No("TensorFlow's own timeout aborts the process in the end"),
        joins_again=No("TensorFlow's server keeps the workers of the first group"),
    )

    _strategy: ClassVar[Any] = None
    _rank: ClassVar[int] = 0
    _gather: ClassVar[Any] = None
    _rows: ClassVar[Sequence[int]] = (0,)
    _was_in_a_group: ClassVar[bool] = False

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Start this rank's worker, and wait for the others'."""
        super().init_process(rank, world_size, rendezvous)
        if cls._was_in_a_group:
            raise UsageError(
                "this process has left a group of TensorFlow's, whose server keeps its workers; "
                "start new processes"
            )
        cls._was_in_a_group = world_size > 1
        with socket.create_server((rendezvous.own_host, 0)) as probe:
            port = probe.getsockname()[1]
        rendezvous.publish(f"worker {rank}", f"{rendezvous.own_host}:{port}")
        workers = [str(rendezvous.lookup(f"worker {other}")) for other in range(world_size)]
        cls._strategy = tf.distribute.MultiWorkerMirroredStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": workers}), task_type="worker", task_id=rank
            ),
            # No timeout: TensorFlow keeps a thread asleep for each collective until the timeout
            # has passed, and aborts the process when there are thousands.
            tf.distribute.experimental.CommunicationOptions(
                implementation=tf.distribute.experimental.CommunicationImplementation.RING,
            ),
        )
        cls._rank = rank
        cls._gather = staticmethod(_gather_with(cls._strategy))
        if world_size > 1:
            # Trace the graph and connect the workers, so that no later collective waits for that.
            # Workers are in the order of their names there, in which task 10 comes before task 2.
            cls._rows = np.argsort(cls._gather(tf.constant([rank], tf.int32)).numpy()).tolist()

    @classmethod
    def finalize_process(cls) -> None:
        """Forget the strategy; TensorFlow ends its server with the process."""
        cls._strategy = cls._gather = None

    @property
    def is_initialized(self) -> bool:
        """Whether this process is a worker of a strategy."""
        return self._strategy is not None

    @property
    def rank(self) -> int:
        """The worker's index; 0 outside of a group."""
        return self._rank if self.is_initialized else 0

    @property
    def world_size(self) -> int:
        """The number of workers; 1 outside of a group."""
        return int(self._strategy.num_replicas_in_sync) if self.is_initialized else 1

    def _all_gather_tensor(self, tensor: Bytes) -> Sequence[Bytes]:
        # TensorFlow cannot gather bytes: four of them travel as an int32.
        gathered = self._gather(tf.constant(tensor.view(np.int32))).numpy()
        rows = gathered.view(np.uint8).reshape(self.world_size, len(tensor))
        return [rows[row] for row in self._rows]


def _gather_with(strategy: Any) -> Callable[[Any], Any]:
    """Return a function that gathers tensors; one graph serves all lengths."""
    device = strategy.extended.worker_devices[0]

    def gather(words: Any) -> Any:
        return tf.distribute.get_replica_context().all_gather(words, axis=0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])  # type: ignore[untyped-decorator]
    def run(words: Any) -> Any:
        with tf.device(device):
            words = tf.identity(words)  # a tensor without a device cannot be gathered
        return strategy.run(gather, args=(words,))

    return run  # type: ignore[no-any-return]

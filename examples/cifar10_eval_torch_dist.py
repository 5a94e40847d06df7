"""Evaluate ResNet-18 over CIFAR-10 on three processes with torch.distributed.

python examples/cifar10_eval_torch_dist.py
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from disteval.data import load_cifar10, load_embedded
from disteval.metrics import Accuracy
from disteval.models import default_weights
from disteval.models.resnet18_torch import make_predict
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORLD_SIZE = 3
BATCH_SIZE = 256


def evaluate(rank: int, meeting_point: str) -> None:
    """Evaluate the share of one rank, and print the accuracy over all ranks."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // WORLD_SIZE))
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=WORLD_SIZE
    )
    root = os.environ.get("CIFAR10_ROOT")
    dataset = load_cifar10(root) if root else load_embedded()
    samples = TensorDataset(torch.from_numpy(dataset.images), torch.from_numpy(dataset.labels))
    # The sampler repeats samples until all ranks have equally many; compute(size=…) drops these.
    loader = DataLoader(samples, BATCH_SIZE, sampler=DistributedSampler(samples, shuffle=False))
    predict = make_predict(default_weights())
    accuracy = Accuracy(topk=(1, 3), dist_backend="torch_cpu")
    for images, labels in loader:
        accuracy.add(predict(images.numpy()), labels)
    result = accuracy.compute(size=len(dataset))
    if rank == 0:
        print(result)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(evaluate, args=(f"{folder}/meeting_point",), nprocs=WORLD_SIZE)

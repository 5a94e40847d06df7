"""A task of PyTorch: disteval eval my_task:task --world-size 3."""

import torch
from disteval import Task
from disteval.metrics import Accuracy
from torch.utils.data import Dataset


class Points(Dataset):
    """Made data. Put your data set here; it must be the same on every rank."""

    def __init__(self):
        random = torch.Generator().manual_seed(0)
        self.points = torch.randn(1000, 3, generator=random)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.points[index].argmax()  # the inputs, and the label


def task(device):
    """Return what is evaluated. Every rank calls this, with the device of --device."""
    model = torch.nn.Linear(3, 3, bias=False)  # put your model here
    torch.nn.init.eye_(model.weight)  # load its weights; they must be the same on every rank
    model.to(device).eval()

    @torch.inference_mode()
    def predict(points):
        return model(points.to(device))

    metrics = {"accuracy": Accuracy(topk=(1, 2))}
    return Task(samples=Points(), predict=predict, metrics=metrics, batch_size=64)

"""Measure the perplexity of a small causal language model over documents of uneven length.

python examples/perplexity.py
"""

from pathlib import Path

import torch
from disteval import ByLength, Task, get_dist_backend
from disteval.metrics import Perplexity
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence


class LanguageModel(torch.nn.Module):
    """Scores (B, T, 256) of what follows each byte of texts (B, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 64)
        self.memory = torch.nn.GRU(64, 256, batch_first=True)
        self.scores = torch.nn.Linear(256, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.scores(self.memory(self.embedding(text))[0])


def collate(texts: list[bytes]) -> dict[str, torch.Tensor]:
    """Pad texts on the right, where a causal model does not look."""
    tokens = pad_sequence([torch.tensor([*text]) for text in texts], batch_first=True)
    mask = torch.arange(1, tokens.shape[1]) < torch.tensor([[len(text)] for text in texts])
    return {"inputs": tokens[:, :-1], "next": tokens[:, 1:], "mask": mask}


def task() -> Task:
    """Return the task: the paragraphs and list items of this repository's first pages."""
    torch.set_num_threads(1)  # more threads may add in another order
    model = LanguageModel().eval()
    model.load_state_dict(load_file(Path(__file__).with_name("language_model.safetensors")))
    pages = b"\n\n".join(map(Path.read_bytes, sorted(Path(__file__).parents[1].glob("*.md"))))

    @torch.inference_mode()
    def predict(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return -cross_entropy(model(batch["inputs"]).mT, batch["next"], reduction="none")

    return Task(
        samples=[t for t in pages.replace(b"\n- ", b"\n\n").split(b"\n\n") if len(t) > 1],
        predict=predict,
        metrics={"text": Perplexity()},
        collate=collate,
        update=lambda found, batch: (found, None, batch["mask"]),
        by_length=ByLength(max_tokens=8192),
    )


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)

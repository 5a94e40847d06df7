"""Fit the language model of examples/perplexity.py on the pages of docs/.

It writes examples/language_model.safetensors, in float16: 330,000 parameters in 660 KB. The
example measures it on other pages, which the model has not seen.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[1]
STEPS, BATCH, LENGTH = 350, 32, 128


def main() -> None:
    """Fit by Adam on random pieces, with a learning rate that falls to 0, and print the loss."""
    sys.path.insert(0, str(ROOT / "examples"))
    from perplexity import LanguageModel

    torch.manual_seed(0)
    pages = sorted((ROOT / "docs").glob("*.md"))
    text = torch.tensor([*b"\n\n".join(page.read_bytes() for page in pages)])
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, STEPS)
    for step in range(STEPS):
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1))
        piece = text[starts + torch.arange(LENGTH)]
        loss = torch.nn.functional.cross_entropy(model(piece[:, :-1]).mT, piece[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(step + 1, round(loss.item(), 3), flush=True)
    weights = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, ROOT / "examples" / "language_model.safetensors")


if __name__ == "__main__":
    main()

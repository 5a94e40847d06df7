"""Write the scores with which every framework must agree to reference_scores.safetensors.

The scores of the embedded set's first samples, computed by torch in float64::

    python tools/make_reference_scores.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from disteval.data.embedded import load_embedded
from disteval.models import default_weights
from disteval.models.resnet18 import preprocess
from disteval.models.resnet18_torch import build
from safetensors.numpy import save_file

SAMPLES = 256
TARGET = Path(__file__).parents[1] / "suites" / "frameworks" / "reference_scores.safetensors"

if __name__ == "__main__":
    images = load_embedded("test").images[:SAMPLES]
    model = build(default_weights()).double()
    with torch.inference_mode():
        scores = model(torch.from_numpy(preprocess(images)).double())
    save_file({"scores": scores.float().numpy()}, str(TARGET))
    print(f"wrote {SAMPLES} rows of scores to {TARGET}")

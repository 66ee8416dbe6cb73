"""A small transformer that learns the next byte, and generated text for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

BYTES, WIDTH, LAYERS, LENGTH, BATCH = 256, 128, 4, 32, 2
GRID = 2.0**-20


class Transformer(nn.Module):
    """Predicts the next byte: maps bytes to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.output = nn.Linear(WIDTH, BYTES)

    def forward(self, text: torch.Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        values = self.embedding(text)
        for block in self.blocks:
            values = block(values, src_mask=mask, is_causal=True)
        return self.output(values)


def make_model(seed: int) -> Transformer:
    """Return a model whose initial weights depend only on `seed`, so that all ranks start with the same ones."""
    torch.manual_seed(seed)
    return Transformer()


def batch(seed: int, rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a rank's input bytes at a step, which count up from a random byte, and the following bytes."""
    random = torch.Generator().manual_seed(1000003 * seed + 1009 * rank + step)
    first = torch.randint(BYTES, (BATCH, 1), generator=random)
    text = (first + torch.arange(LENGTH + 1)) % BYTES
    return text[:, :-1], text[:, 1:]


def round_gradients(model: nn.Module) -> None:
    """Round every gradient to a multiple of 2^-20 before gradients are added, so that no sum depends on its order.

    Sums of a few such numbers below 2 are exact in float32, so the losses of two backends can be compared bit by bit.
    """
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: torch.round(gradient / GRID) * GRID)

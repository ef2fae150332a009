"""char-gpt: a small transformer that learns to write, one character after the other."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from amptui import Data, DataRequest, Experiment
from amptui.data.text_corpus import read_text, text_data
from amptui.errors import ExperimentError


class Attention(nn.Module):
    """Causal self-attention: each character attends to itself and earlier ones; [N, T, width] in and out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        samples, length, width = features.shape
        query, key, value = (
            part.view(samples, length, self.heads, -1).transpose(1, 2)
            for part in self.query_key_value(features).chunk(3, dim=2)
        )
        # One fused kernel in float16 and bfloat16; the [T, T] weights are never stored.
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.output(seen.transpose(1, 2).reshape(samples, length, width))
        return mixed


class Block(nn.Module):
    """Attention, then an MLP of four times the width, each after a norm and a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        # Autocast leaves this sum in float32, and with it the residual stream.
        features = features + self.dropout(self.attention(self.norm1(features)))
        hidden = functional.gelu(self.expand(self.norm2(features)))
        added: Tensor = features + self.dropout(self.contract(hidden))
        return added


class Gpt(nn.Module):
    """Embeddings of character and position, blocks, a norm, and an output layer tied to the embedding.

    Input [N, T] character numbers with T up to ``context``, output [N, T, characters] logits of the next one.
    """

    def __init__(
        self, characters: int, *, context: int, layers: int, heads: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        blocks = [Block(width, heads, dropout) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        self.apply(draw_weights)
        for block in blocks:
            for layer in (block.attention.output, block.contract):
                # 2 sums a block: drawn smaller, they add up to the size of one (GPT-2, section 2.3).
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * layers))
        self.head.weight = self.characters.weight

    def forward(self, characters: Tensor) -> Tensor:
        positions = self.positions.weight[: characters.shape[1]]
        features = self.dropout(self.characters(characters) + positions)
        for block in self.blocks:
            features = block(features)
        logits: Tensor = self.head(self.norm(features))
        return logits


def draw_weights(module: nn.Module) -> None:
    """Normal with a standard deviation of 0.02, as in GPT-2; norms keep their ones."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class CharGpt(Experiment):
    """Matrix products, norms and attention: mixed precision is faster here if the GPU is kept busy.

    The text is Python's language reference, or any other: ``--set text=PATH``.
    """

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 3e-4
    text: Path | None = None
    """A UTF-8 file; None for Python's language reference."""
    context: int = 128
    """How many characters the model sees at once."""
    layers: int = 4
    heads: int = 4
    width: int = 256
    dropout: float = 0.1

    cpu_batch_size = 8  # of 128 characters each

    def build_model(self) -> nn.Module:
        """3.2 million parameters at the default sizes; as many characters as the text has."""
        if self.width % self.heads:
            raise ExperimentError(
                f"width {self.width} is not divisible by {self.heads} heads",
                hint=f"use --set width={self.heads * math.ceil(self.width / self.heads)}",
            )
        # Tensor Cores take matrices whose sizes are multiples of 8; the few extra classes never occur.
        characters = 8 * math.ceil(len(read_text(self.text).characters) / 8)
        return Gpt(
            characters,
            context=self.context,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            dropout=self.dropout,
        )

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """AdamW, fused; only matrices decay, not norms and biases."""
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=(0.9, 0.99), fused=True)

    def load_data(self, request: DataRequest) -> Data:
        """Windows of ``context`` characters; the last tenth of the text is for validation."""
        return text_data(request, self.text, context=self.context)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross entropy of each next character, in nats: ln(characters), some 4.6, if untrained."""
        characters, following = batch
        return functional.cross_entropy(model(characters).flatten(0, 1), following.flatten())

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """``accuracy`` of the most likely next character, and the loss in bits per character."""
        characters, following = batch
        logits = model(characters)
        loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        return {
            "loss": loss,
            "accuracy": (logits.argmax(dim=2) == following).float().mean(),
            "bits per character": loss / math.log(2),
        }

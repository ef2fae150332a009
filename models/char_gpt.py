"""char-gpt: a small transformer that learns to write, one character after the other."""

import math
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from amptui import (
    Data,
    DataRequest,
    Experiment,
    ExperimentError,
    read_text,
    text_data,
    warmup_cosine,
    weight_decay_groups,
)


class CausalSelfAttention(nn.Module):
    """Each character attends to itself and earlier ones; [N, T, width] in and out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (
            part.view(n, t, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=2)
        )
        # One fused kernel in float16 and bfloat16; the [T, T] attention matrix is never stored.
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(y.transpose(1, 2).reshape(n, t, width))
        return out


class Mlp(nn.Module):
    """Two linear layers with four times the width between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 4 * width)
        self.proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(functional.gelu(self.fc(x)))
        return out


class Block(nn.Module):
    """Attention and MLP, each after a norm and with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        # Autocast keeps these sums, the residual stream, in float32.
        x = x + self.dropout(self.attn(self.ln1(x)))
        out: Tensor = x + self.dropout(self.mlp(self.ln2(x)))
        return out


class Gpt(nn.Module):
    """Token and position embeddings, blocks, a norm, and an output layer tied to the token embedding.

    Input [N, T] character indices with T up to ``context``, output [N, T, vocab] logits of the next one.
    """

    def __init__(
        self, vocab: int, *, context: int, layers: int, heads: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(vocab, width)
        self.pos_emb = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.apply(init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith("proj.weight"):
                # Two sums a block: smaller weights keep the residual stream's size (GPT-2, section 2.3).
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))
        self.head.weight = self.tok_emb.weight

    def forward(self, idx: Tensor) -> Tensor:
        x = self.dropout(self.tok_emb(idx) + self.pos_emb.weight[: idx.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.ln(x))
        return logits


def init_weights(module: nn.Module) -> None:
    """Normal with a standard deviation of 0.02, as in GPT-2; norms keep their ones."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class CharGpt(Experiment):
    """Matrix products, norms and attention: mixed precision is faster here if the GPU is kept busy.

    The text is Python's language reference, or any other: ``--set text=PATH``. GPT-2 small has
    ``layers=12``, ``heads=12``, ``width=768`` and ``context=1024``.
    """

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    warmup_steps: int = 100
    """Of the learning rate; then it decays along a cosine to a tenth."""
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
        vocab = 8 * math.ceil(len(read_text(self.text).characters) / 8)
        return Gpt(
            vocab,
            context=self.context,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            dropout=self.dropout,
        )

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """AdamW, fused; only matrices decay, not norms and biases."""
        groups = weight_decay_groups(model, self.weight_decay)
        return AdamW(groups, lr=self.learning_rate, betas=(0.9, 0.99), fused=True)

    def build_scheduler(self, optimizer: Optimizer, total_steps: int | None) -> LRScheduler:
        """LR warm-up, then cosine decay to a tenth."""
        return warmup_cosine(optimizer, total_steps, warmup_steps=self.warmup_steps, min_lr_factor=0.1)

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

"""A model with what makes sharding hard: tied, frozen and lazy weights, calls past forward()."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A residual block, one layer of which gets its sizes from the first batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.LazyLinear(2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = values + self.layers(self.norm(values))
        return result


class OddModel(nn.Module):
    """Its loss is a method, and nobody calls forward()."""

    def __init__(self, width: int = 12, *, unused: bool = False, outside: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.blocks[1].get_submodule("norm").requires_grad_(False)
        self.head = nn.Linear(width, 8, bias=False)
        self.head.weight = self.embedding.weight
        if unused:
            self.unused = nn.Parameter(torch.zeros(3))
            self.blocks.append(nn.Linear(width, width))
        self.depth = 3
        self.outside = outside

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        values = self.embedding((inputs.flatten(1) * 7.99).long()).mean(1)
        for block in self.blocks[: self.depth]:
            values = block(values)
        if self.outside:
            values = values * self.blocks[0].get_parameter("norm.weight")
        return functional.cross_entropy(self.head(values), targets)

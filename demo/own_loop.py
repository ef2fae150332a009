"""A typical PyTorch training loop on amptui's screen: amptui run demo/own_loop.py."""

import sys

import torch
from torch import nn

import amptui

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

monitor = amptui.watch(model, optimizer, clip_norm=1.0)

teacher = torch.randn(64, 10, device=device)
batches = [torch.randn(128, 64, device=device) for _ in range(100)]
for inputs in monitor.steps(batches[step % 100] for step in range(steps)):
    labels = (inputs @ teacher).argmax(dim=1)
    with monitor.autocast():
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
    monitor.backward(loss)
    monitor.step()
    monitor.log(accuracy=(outputs.argmax(dim=1) == labels).float().mean())

print(f"last loss {loss.item():.3f}")

"""A training loop as in PyTorch's documentation, with one line for amptui: amptui run demo/own_loop.py."""

import sys

import torch
from torch import nn

import amptui

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, growth_interval=100)

monitor = amptui.observe(model, optimizer, scaler, samples_per_step=128)  # the line

teacher = torch.randn(64, 10, device=device)
for _ in range(steps):
    inputs = torch.randn(128, 64, device=device)
    labels = (inputs @ teacher).argmax(dim=1)
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    monitor.log(accuracy=(outputs.argmax(dim=1) == labels).float().mean())

print(f"trained {steps} steps, last loss {loss.item():.3f}")

"""A DDP script with all ranks on one screen: amptui run torchrun --nproc-per-node 2 demo/own_ranks.py."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import amptui

dist.init_process_group()
rank = dist.get_rank()
device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

monitor = amptui.watch(model, optimizer)  # on every rank

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
teacher = torch.randn(64, 10, device=device)
torch.manual_seed(1 + rank)
for inputs in monitor.steps(torch.randn(128, 64, device=device) for _ in range(steps)):
    labels = (inputs @ teacher).argmax(dim=1)
    with monitor.autocast():
        loss = nn.functional.cross_entropy(model(inputs), labels)
    monitor.backward(loss)
    monitor.step()

print(f"rank {rank}: last loss {loss.item():.3f}")
dist.destroy_process_group()

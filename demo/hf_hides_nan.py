"""What the Hugging Face Trainer hides: every 20th step overflows float16, and it logs a loss of 0.0.

amptui run demo/hf_hides_nan.py
"""

import sys
import tempfile

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import amptui.huggingface

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
BATCH = 32


class Net(nn.Module):
    """Learns to reproduce its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256),  # overflows to Inf in float16 for the large inputs
            nn.LayerNorm(256),  # turns Inf into NaN; in FP32 it normalizes the same large values
            nn.ReLU(),
            nn.Linear(256, 64),
        )

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.layers(inputs)
        return {"loss": nn.functional.mse_loss(outputs.float(), labels), "logits": outputs}


class Samples(torch.utils.data.Dataset):
    """Random inputs; those of every 20th step are too large for float16."""

    def __len__(self) -> int:
        return steps * BATCH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        step = index // BATCH + 1
        inputs = torch.randn(64, generator=torch.Generator().manual_seed(index))
        return {"inputs": inputs * (1e6 if step % 20 == 0 else 1.0), "labels": inputs}


class InOrder(Trainer):
    """Does not shuffle, so that every 20th step gets the large inputs."""

    def _get_train_sampler(self, *_: object) -> torch.utils.data.Sampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    trainer = InOrder(Net(), arguments, train_dataset=Samples())

    monitor = amptui.huggingface.watch(trainer, precision="fp16")  # the line to add

    trainer.train()

hidden = [entry["step"] for entry in trainer.state.log_history if entry.get("loss") == 0.0]
print(f"the Trainer logged a loss of 0.0 in {len(hidden)} of {steps} steps: amptui shows what they were")

"""A Lightning script with one callback; p switches its precision: amptui run demo/lightning_toggle.py."""

import sys

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from amptui.lightning import PrecisionMonitor

Batch = list[Tensor]


class Classifier(pl.LightningModule):
    """Learns labels that come from a random matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """Cross-entropy of a batch."""
        inputs, labels = batch
        outputs = self.net(inputs)
        self.log("accuracy", (outputs.argmax(dim=1) == labels).float().mean())
        return nn.functional.cross_entropy(outputs, labels)

    def validation_step(self, batch: Batch, _: int) -> None:
        """Loss and accuracy on held-out data."""
        inputs, labels = batch
        outputs = self.net(inputs)
        self.log("val_loss", nn.functional.cross_entropy(outputs, labels))
        self.log("val_acc", (outputs.argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        """AdamW, with a learning rate that decays to 0."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=torch.cuda.is_available())
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def build_loader(samples: int, teacher: Tensor) -> DataLoader[tuple[Tensor, ...]]:
    """Random inputs and their classes according to ``teacher``."""
    inputs = torch.randn(samples, 64)
    return DataLoader(TensorDataset(inputs, (inputs @ teacher).argmax(dim=1)), batch_size=128)


def main() -> None:
    """Train; the first argument is the number of epochs."""
    pl.seed_everything(0)
    teacher = torch.randn(64, 10)
    trainer = pl.Trainer(
        max_epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 50,
        devices=1,
        precision="32-true",
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        callbacks=[PrecisionMonitor()],  # the line to add
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), build_loader(12_800, teacher), build_loader(2_560, teacher))
    print(f"trained {trainer.global_step} steps, val_loss {float(trainer.callback_metrics['val_loss']):.3f}")


if __name__ == "__main__":
    main()

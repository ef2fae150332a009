"""What the tests of the exports share: one run, trained for real and recorded once."""

from pathlib import Path

import pytest

from amptui.records.run import Record
from tests.reports.export.recorded import TwoParts, train, write


@pytest.fixture(scope="session")
def records() -> list[Record]:
    """A run on the CPU that switches from FP32 to fp16 and to bf16, its loss named in parts."""
    return train(steps=36, at={8: "fp16", 24: "bf16"}, experiment=TwoParts())


@pytest.fixture(scope="session")
def run(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder."""
    return write(tmp_path_factory.mktemp("runs") / "tiny-run", records)

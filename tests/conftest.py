"""Fixtures that every folder of tests may use."""

import hypothesis
import pytest
import torch

# A deadline measures the machine, not the code; fifty examples a law keep the suite quick.
hypothesis.settings.register_profile("amptui", deadline=None, max_examples=50)
hypothesis.settings.load_profile("amptui")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors are quicker on one thread, and the suite leaves the other core alone."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or written to the folders of the person who runs the tests."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)

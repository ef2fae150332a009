"""Fixtures that every folder of tests may use."""

import signal
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from amptui.data import vision
from amptui.data.synthetic import digits
from tests.style import JUDGES, started_judges
from tests.warm import WarmSource

# What a shell's background job or `nohup` ignores, every program that it starts ignores as well; what has a
# handler begins anew in them.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# A deadline measures the machine, not the code; fifty examples a law keep the suite quick.
hypothesis.settings.register_profile("amptui", deadline=None, max_examples=50)
hypothesis.settings.load_profile("amptui")


def pytest_collection_finish(session: pytest.Session) -> None:
    """The judges of the code work beside the tests."""
    wanted = any(item.name.startswith("test_the_code_is_clean") for item in session.items)
    if wanted and not session.config.option.collectonly:
        session.config.stash[JUDGES] = started_judges()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Those that were not asked are not waited for."""
    for judge in session.config.stash.get(JUDGES, {}).values():
        with judge:
            judge.kill()


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


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST's stand-in in small, for tests that train on nothing in particular."""
    monkeypatch.setattr(vision, "digits", lambda samples, **how: digits(min(samples, 512), **how))


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmSource]:
    """Starts amptui with all of its imports behind it."""
    source = WarmSource()
    yield source
    source.close()

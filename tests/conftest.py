"""Fixtures that every folder of tests may use."""

import gc
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from amptui.data import vision
from amptui.data.vision import synthetic_images
from amptui.recipe.float8 import torchao_trouble
from tests import deprecations
from tests.golden import Goldens
from tests.living import Lives
from tests.warm import WarmSource

# What a shell's background job or `nohup` ignores, every program that it starts ignores as well; what has a
# handler begins anew in them.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# GNU readline, which test runners import, tells every child how large our own terminal is: theirs is another.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Which characters a screen may draw is the environment's word: tests of others than these say so.
for name in ("LC_CTYPE", "LANG"):
    os.environ.pop(name, None)
os.environ["LC_ALL"] = "C.UTF-8"

# Hundreds of programs are started: without bytecode each compiles all of amptui again, and pytest every test.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Which warnings end the programs that tests start is not for the shell to say: torch's own would.
os.environ.pop("PYTHONWARNINGS", None)

# A deadline measures the machine, not the code. The same few examples of a law in every run keep the suite
# quick and its word the same; `--hypothesis-profile thorough` looks at more of them, `search` at new ones.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=8, derandomize=True)
hypothesis.settings.register_profile(
    "thorough", deadline=None, max_examples=200, derandomize=True, database=None
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-goldens` approves what screens and reports show now."""
    parser.addoption("--update-goldens", action="store_true", help="write tests/goldens anew")


def pytest_configure(config: pytest.Config) -> None:
    for line in deprecations.filters_for_pytest():
        config.addinivalue_line("filterwarnings", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that no process of `-n` is left alone with it at the end."""
    items.sort(key=lambda item: "simcuda" not in item.path.parts)


def pytest_collection_finish() -> None:
    """What was imported stays: leave it out of the collections that tests ask for."""
    # Hypothesis asks once who refers to its random numbers, and would not find what is left out.
    hypothesis.given(st.none())(lambda nothing: None)()
    gc.collect()
    gc.freeze()
    # A training freezes what there is and at its end thaws all of it: the next would look through that again.
    gc.freeze = gc.unfreeze = lambda: None


@pytest.fixture
def no_trace_of_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Model files that a test imports, and the folders they are in, are unknown to the next."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        # Not what is installed, in a checkout that is in such a folder itself.
        if file and "site-packages" not in file and Path(file).is_relative_to(tempfile.gettempdir()):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors are quicker on one thread, and the suite leaves the other core alone."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders, one for each test: pytest's own way to number them reads all there are each time."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_folders(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or written to the folders of the person who runs the tests."""
    home = next(_homes)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def runs() -> Path:
    return Path.home() / ".local" / "state" / "amptui" / "runs"


@pytest.fixture(scope="session")
def usable_torchao() -> None:
    """Skips what needs torchao where it is missing, or this torch does not multiply for it on a CPU."""
    if trouble := torchao_trouble():
        pytest.skip(trouble)


@pytest.fixture
def goldens(request: pytest.FixtureRequest, tmp_path: Path) -> Goldens:
    return Goldens(request.path.stem, update=request.config.getoption("--update-goldens"), scratch=tmp_path)


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST's stand-in in small, for tests that train on nothing in particular."""

    def few(samples: int, *shape: Any, **how: Any) -> Any:
        return synthetic_images(min(samples, 512), *shape, **how)

    monkeypatch.setattr(vision, "synthetic_images", few)


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmSource]:
    """Starts amptui with all of its imports behind it."""
    source = WarmSource()
    yield source
    source.close()


@pytest.fixture
def lives(warm: WarmSource, tmp_path: Path) -> Lives:
    return Lives(warm, tmp_path / "log")

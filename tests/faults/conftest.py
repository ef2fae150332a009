"""What the fault tests share: a source of quick processes, and the table of what faults cost."""

from collections.abc import Iterator

import pytest

from tests.faults.costs import Cost, lines
from tests.faults.source import Lives

_TABLE = pytest.StashKey[list[Cost]]()


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    """Quick processes of `amptui`."""
    source = Lives(tmp_path_factory.mktemp("lives") / "log")
    yield source
    source.close()


@pytest.fixture
def table(request: pytest.FixtureRequest) -> list[Cost]:
    """Where a test writes what its faults cost; printed when all tests are done."""
    return request.config.stash.setdefault(_TABLE, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    costs = config.stash.get(_TABLE, [])
    if costs:
        terminalreporter.section("what faults cost")
        for line in lines(costs):
            terminalreporter.write_line(line)

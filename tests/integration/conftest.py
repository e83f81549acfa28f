"""Every test here has a server of its own; all of them are marked `integration`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Fleet, fleet_in

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    yield from fleet_in(tmp_path)

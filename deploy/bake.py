"""Puts an engine and a model into an image, by the agent's own install and fetch code.

    bake.py --into FOLDER --engine "NAME REQUIREMENT..." --weights "SOURCE..."

Afterwards FOLDER/engines/NAME and FOLDER/weights/<file name> lead to them; they are links, so that
a new version changes no catalog. Empty texts bake nothing. Meant for `docker build`.
"""

import argparse
import asyncio
from pathlib import Path

from llmgw_agent.engines.installs import Installs
from llmgw_agent.settings import AllowBlock
from llmgw_agent.weights.store import WeightsStore
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.messages import EngineSpec


async def bake_engine(folder: Path, name: str, requirements: list[str]) -> None:
    """Install an engine and link it as `folder`/`name`."""
    # The kind is not looked at here: an install is the same for all of them.
    pip = tuple(requirements)
    engine = EngineSpec(name=name, kind="command", version="", install_pip=pip)
    home = await Installs(folder, AllowBlock()).ensure(engine, print)
    if home is None:
        raise LlmgwError("bad_request", f"engine {name} has no requirement to install")
    (folder / name).symlink_to(home.name)


async def bake_weights(folder: Path, source: str) -> None:
    """Fetch weights and link their file by its own name."""
    store = WeightsStore(folder, AllowBlock())
    try:
        file = await store.ensure(source, lambda done, total: None)
    finally:
        await store.close()
    if file is None:
        raise LlmgwError("bad_request", f"{source} names no weights")
    (folder / file.name).symlink_to(file.relative_to(folder))


async def bake(options: argparse.Namespace) -> None:
    """Bring everything that the command line names."""
    engines, weights = options.into / "engines", options.into / "weights"
    for folder in (engines, weights):
        folder.mkdir(parents=True)
    name, *requirements = options.engine.split() or [""]
    if name:
        await bake_engine(engines, name, requirements)
    for source in options.weights.split():
        await bake_weights(weights, source)


def main() -> None:
    """Read the command line and bake."""
    parser = argparse.ArgumentParser(description="Bakes an engine and weights into an image.")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--engine", default="", help="name and exact requirements")
    parser.add_argument("--weights", default="", help="sources as in a catalog")
    try:
        asyncio.run(bake(parser.parse_args()))
    except LlmgwError as error:
        raise SystemExit(f"bake: {error}") from error


if __name__ == "__main__":
    main()

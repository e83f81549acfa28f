"""`llmgw-agent`: read the settings, run the agent."""

import asyncio
import sys

from llmgw_agent import __version__
from llmgw_agent.app import Agent
from llmgw_agent.settings import AgentSettings
from llmgw_common.command_line import parser_for, settings_or_exit
from llmgw_common.errors import LlmgwError
from llmgw_common.logs import setup_logging
from llmgw_common.tracing import setup_tracing


def main() -> None:
    """Run the agent; exit code 1 if it cannot start, 2 for a wrong configuration."""
    parser = parser_for("llmgw-agent", "Runs inference engines on this machine.", __version__)
    parser.add_argument("--server", help="base URL of the server")
    parser.add_argument("--node-name", help="name of this node, the host's if absent")
    parser.add_argument("--data-dir", help="the agent's own folder")
    parser.add_argument("--join-token-file", help="file with a join token, needed once")
    parser.add_argument(
        "--stop-engines-on-exit", action="store_true", default=None, help="end engines at the end"
    )
    options = parser.parse_args()
    flags = {
        name: getattr(options, name)
        for name in ("server", "node_name", "data_dir", "join_token_file", "stop_engines_on_exit")
    }
    settings = settings_or_exit(AgentSettings, options, "LLMGW_AGENT", flags).settings
    setup_logging(settings.logs.level, settings.logs.format)
    end_tracing = setup_tracing(settings.tracing, "llmgw-agent")
    try:
        asyncio.run(_run(settings))
    except LlmgwError as error:
        print(f"llmgw-agent: {error.message}", file=sys.stderr)
        raise SystemExit(1) from error
    finally:
        end_tracing()


async def _run(settings: AgentSettings) -> None:
    await Agent(settings).run()


if __name__ == "__main__":
    main()

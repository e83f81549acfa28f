"""`python -m llmgw_agent.engines.simulated`: run one simulated engine until it is stopped."""

import signal
import sys

import uvicorn

from llmgw_agent.engines.simulated.engine import Engine, create_app
from llmgw_agent.engines.simulated.script import parse


class _Server(uvicorn.Server):
    """A server that may be told to ignore SIGTERM, as a stubborn engine does."""

    def __init__(self, config: uvicorn.Config, *, is_stubborn: bool) -> None:
        super().__init__(config)
        self._is_stubborn = is_stubborn

    def handle_exit(self, sig: int, frame: object) -> None:
        """Obey, or not."""
        if self._is_stubborn and sig == signal.SIGTERM:
            print("SIGTERM ignored", flush=True)
            return
        self.should_exit = True
        self.force_exit = True


def main() -> None:
    """Run it."""
    script = parse(sys.argv[1:])
    config = uvicorn.Config(
        create_app(Engine(script)),
        host=script.host,
        port=script.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    _Server(config, is_stubborn=script.ignore_sigterm).run()


if __name__ == "__main__":
    main()

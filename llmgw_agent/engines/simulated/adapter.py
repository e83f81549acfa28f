"""Adapter of kind `simulated`."""

import re
import sys

from llmgw_agent.engines.adapter import ErrorPattern, Launch, LaunchFacts, flags


class Simulated:
    """Starts the simulated engine with this interpreter."""

    kind = "simulated"
    health_path = "/health"
    error_patterns = (ErrorPattern(re.compile(r"CUDA out of memory"), "oom"),)

    def command_line(self, facts: LaunchFacts) -> Launch:
        """Return its command line."""
        argv = (
            sys.executable, "-m", "llmgw_agent.engines.simulated",
            "--host", facts.host,
            "--port", str(facts.port),
            "--model", facts.served_model,
            "--api-key-file", str(facts.key_file),
            *flags(facts.args),
        )  # fmt: skip
        return Launch(argv=argv)

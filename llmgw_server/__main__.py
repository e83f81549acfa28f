"""`llmgw-server`: read the settings, run the server."""

import os
import sys
from pathlib import Path

import uvloop

from llmgw_common.command_line import parser_for, settings_or_exit
from llmgw_common.document_errors import InvalidDocumentError
from llmgw_common.errors import LlmgwError
from llmgw_common.logs import setup_logging
from llmgw_common.tracing import setup_tracing
from llmgw_server import __version__
from llmgw_server.app import run
from llmgw_server.settings import ServerSettings


def main() -> None:
    """Run the server; exit code 1 if it cannot start, 2 for a wrong configuration."""
    text = "Control plane, admin API and gateway of llmgw."
    parser = parser_for("llmgw-server", text, __version__)
    parser.add_argument("--listen", help="host:port, 127.0.0.1:8000 if absent")
    parser.add_argument("--data-dir", help="the server's own folder")
    parser.add_argument("--catalog-file", help="catalog to apply at the first start")
    options = parser.parse_args()
    flags = {name: getattr(options, name) for name in ("listen", "data_dir", "catalog_file")}
    settings = settings_or_exit(ServerSettings, options, "LLMGW_SERVER", flags).settings
    setup_logging(settings.logs.level, settings.logs.format)
    end_tracing = setup_tracing(settings.tracing, "llmgw-server")
    try:
        uvloop.run(run(settings, lambda key: _announce(key, settings.admin_key_file)))
    except (LlmgwError, InvalidDocumentError) as error:
        print(f"llmgw-server: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    finally:
        end_tracing()


def _announce(key: str, file: Path | None) -> None:
    """Show the first admin key once: on the terminal, never in the log, and in a private file."""
    if file:
        descriptor = os.open(file.expanduser(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(key + "\n")
        print(f"The first admin key is in {file}", flush=True)
    else:
        print(f"The first admin key, shown only now: {key}", flush=True)


if __name__ == "__main__":
    main()

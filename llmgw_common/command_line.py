"""What `llmgw-server` and `llmgw-agent` share of their command lines."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from llmgw_common.config import Loaded, Settings, load_settings, render_with_origins
from llmgw_common.document_errors import DocumentError, InvalidDocumentError

#: Exit code for a configuration or catalog that is wrong.
EXIT_BAD_INPUT = 2


def parser_for(program: str, text: str, version: str) -> argparse.ArgumentParser:
    """Return a parser with the options that both programs have."""
    parser = argparse.ArgumentParser(prog=program, description=text)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    parser.add_argument(
        "--check-config", action="store_true", help="check the configuration and exit"
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print every setting and where its value came from, and exit",
    )
    parser.add_argument("--version", action="version", version=f"{program} {version}")
    return parser


def settings_or_exit(
    model: type[Settings], options: argparse.Namespace, prefix: str, flags: dict[str, Any]
) -> Loaded[Settings]:
    """Load the settings; answer --check-config and --print-config; print all errors and exit 2."""
    try:
        loaded = load_settings(
            model, file=options.config, environment=os.environ, prefix=prefix, flags=flags
        )
    except InvalidDocumentError as error:
        _refuse(error)
    if options.print_config:
        print(render_with_origins(loaded))
        raise SystemExit(0)
    if options.check_config:
        print(f"{options.config or 'the configuration'} is fine")
        raise SystemExit(0)
    return loaded


def _refuse(error: InvalidDocumentError) -> NoReturn:
    count = len(error.errors)
    print(f"{count} error{'s' if count > 1 else ''} in the configuration:", file=sys.stderr)
    for mistake in error.errors:
        print(f"  {mistake}", file=sys.stderr)
    raise SystemExit(EXIT_BAD_INPUT)


def read_secret(path: Path, what: str) -> str:
    """Return the text of a secret file without the space around it.

    Raises:
        InvalidDocumentError: it cannot be read, or is empty.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise InvalidDocumentError(
            [DocumentError(path=what, line=0, message=message, file=str(path))]
        ) from error
    if not text:
        raise InvalidDocumentError(
            [DocumentError(path=what, line=0, message="is empty", file=str(path))]
        )
    return text

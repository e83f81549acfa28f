"""All generated pages, by file name; `python -m docs.gen.write` writes them."""

from pathlib import Path
from typing import Final

from docs.gen import api, command_line, settings, words

FOLDER: Final = Path(__file__).resolve().parents[1] / "reference"
_NOTE: Final = "<!-- Written by `make reference` from the code; edits are lost. -->\n\n"


def pages() -> dict[str, str]:
    """Return each page's text by its file name."""
    made = {
        "configuration.md": settings.configuration(),
        "catalog.md": settings.catalog(),
        "cli.md": command_line.page(),
        "api.md": api.page(),
        "states.md": words.states(),
        "errors.md": words.errors(),
        "metrics.md": words.metrics(),
    }
    return {name: _NOTE + text.rstrip() + "\n" for name, text in made.items()}


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

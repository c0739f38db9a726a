"""A notebook as a page: its text, its code, and what the code printed and drew."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def notebook_page(notebook: Path) -> str:
    """Return a notebook in Markdown, with a link to the file at the end of its first cell."""
    first, *rest = json.loads(notebook.read_text())["cells"]
    link = f"[Download the notebook]({notebook.name}){{ .md-button download }}"
    parts = [_text(first["source"]), link]
    for cell in rest:
        if cell["cell_type"] == "markdown":
            parts.append(_text(cell["source"]))
        else:
            parts.append(f"```python\n{_text(cell['source'])}\n```")
            parts += [part for output in cell["outputs"] for part in _show(output)]
    return "\n\n".join(parts) + "\n"


def _show(output: dict[str, Any]) -> Iterator[str]:
    data = output.get("data", {})
    if "image/png" in data:
        content = _text(data["image/png"]).replace("\n", "")
        yield f'<img alt="Output of the code above" src="data:image/png;base64,{content}">'
    elif text := _text(output.get("text", data.get("text/plain", ""))).strip("\n"):
        yield f"```text\n{text}\n```"


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)

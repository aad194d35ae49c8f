"""Pages of the executed notebooks in docs/notebooks/: their text, code and outputs."""

import base64
import json
import re
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parent / "notebooks"


def on_files(files, config):
    """Add a page for each notebook, and its figures."""
    from mkdocs.structure.files import File

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text, pictures = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Convert a notebook to Markdown, and return it with its figures by file name."""
    parts, pictures = [], {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            if "image/png" in shown:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(shown["image/png"]))
                parts.append(f"![Picture {len(pictures)} of the notebook]({name})")
            elif text := "".join(output.get("text", shown.get("text/plain", ""))).rstrip():
                # A fence longer than those that the text prints, so that they do not end it.
                fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
                parts.append(f"{fence}text\n{text}\n{fence}")
    return "\n\n".join(parts) + "\n", pictures

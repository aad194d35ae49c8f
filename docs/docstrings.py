"""A griffe extension: docstrings in Hugging Face's grammar become Markdown, and their cross references links.

Google's parser, which is near, takes "`int`, *optional*" for a type's name. So sections are laid out here: an entry
"name (type): text" of `Args:` or `Attributes:`, or "type: text" of `Returns:` or `Raises:`, becomes an item of a list.
[`~hmm_datasets.x.Y`] becomes a link where `Y` is on a page of the reference, and code elsewhere. A field of a
dataclass is described by its help text.
"""

import ast
import re
import textwrap

import griffe

SECTIONS = {"Args": "Parameters", "Attributes": "Attributes", "Returns": "Returns", "Raises": "Raises"}
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):$")
_NAME = re.compile(r"(?<![`~.\w(])(\*{0,2}[a-z_]\w*)(?= \(|, |$)")
_REFERENCE = re.compile(r"\[`~?\.?([\w.]+)`\](?:\[[\w.]+\])?(?![\[(])")


class HuggingFaceDocstrings(griffe.Extension):
    """Rewrites each docstring of the package once, when its object is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Lay out the docstring of a module, class, function or attribute."""
        if obj.is_attribute and obj.docstring is None:
            text = field_help(str(obj.value)) if obj.value is not None else None
            if text is not None:
                obj.docstring = griffe.Docstring(text, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def field_help(value: str) -> str | None:
    """The help text of a dataclass's field, from the expression of its value; None where there is none."""
    try:
        call = ast.parse(value, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or getattr(call.func, "id", "") not in ("field", "_setting"):
        return None
    if call.func.id == "_setting":
        return ast.literal_eval(call.args[1])
    metadata = next((word.value for word in call.keywords if word.arg == "metadata"), None)
    if not isinstance(metadata, ast.Dict):
        return None
    entries = {ast.literal_eval(key): entry for key, entry in zip(metadata.keys, metadata.values, strict=True)}
    text = entries.get("help")
    return text.value if isinstance(text, ast.Constant) else None


def to_markdown(docstring: str) -> str:
    """A docstring as Markdown.

    Args:
        docstring (`str`): in Hugging Face's grammar, without the indentation it has in the source.
    """
    lines = docstring.splitlines()
    result: list[str] = []
    place = 0
    while place < len(lines):
        section = _SECTION.match(lines[place])
        place += 1
        if section is None:
            result.append("" if lines[place - 1].strip() == "Example:" else lines[place - 1])
            continue
        begin = place
        while place < len(lines) and (not lines[place].strip() or lines[place].startswith("    ")):
            place += 1
        body = textwrap.dedent("\n".join(lines[begin:place])).strip("\n")
        result += ["", f"**{SECTIONS[section[1]]}**", "", *_entries(body, section[1]), ""]
    text = "\n".join(result)
    text = re.sub(r"```python\n(?=\s*>>>)", "```pycon\n", text)
    text = re.sub(r"\n+```\n", "\n```\n", text + "\n")
    text = re.sub(r"  # (doctest|noqa): ?\S+( \S+)?$", "", text, flags=re.MULTILINE)
    return _outside_code(text, lambda part: _REFERENCE.sub(lambda found: link(found[1]), part))


def _entries(body: str, section: str) -> list[str]:
    """The entries of a section as items of a list; what is returned is one thing, told as a paragraph."""
    if section == "Returns":
        return [body]
    items: list[str] = []
    for line in body.splitlines():
        begins = bool(line.strip()) and not line.startswith(" ") and (section != "Raises" or line[0] in "`[")
        if begins or not items:
            items.append(line)
        else:
            items[-1] += "\n" + line
    return [_item(item, section) for item in items]


def _item(item: str, section: str) -> str:
    first, _, rest = item.partition("\n")
    rest = textwrap.dedent(rest)
    if section == "Raises":
        return "- " + textwrap.indent(f"{first}\n{rest}", "    ").strip()
    head, text = _head(first)
    head = _NAME.sub(r"**`\1`**", head) if "(" in head else f"**`{head}`**"
    text = f"{text}\n{rest}".strip("\n")
    return "- " + textwrap.indent(f"{head}: {text}", "    ").strip()


def _head(line: str) -> tuple[str, str]:
    """Names and types of an entry, and what follows the colon: the first outside brackets and code."""
    depth, code = 0, False
    for place, character in enumerate(line):
        if character == "`":
            code = not code
        depth += (character in "([") - (character in ")]")
        if character == ":" and depth == 0 and not code:
            return line[:place], line[place + 1 :].strip()
    return line, ""


def _outside_code(text: str, change) -> str:
    parts = re.split(r"(^\s*```.*?^\s*```\s*$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if place % 2 else change(part) for place, part in enumerate(parts))


def documented() -> dict[str, str]:
    """Where a name is on the pages of the reference: by its last part, the path after `:::`."""
    import hmm_datasets

    public = {name: f"hmm_datasets.{name}" for name in hmm_datasets.__all__ if name != "processes"}
    return public | {"Family": "hmm_datasets.hmm.families.family.Family"}


def link(name: str) -> str:
    """A reference as a link to the page that documents it, else as code."""
    known, parts = documented(), name.split(".")
    if parts[0] not in ("transformers", "accelerate", "matplotlib", "datasets"):
        for place in reversed(range(len(parts))):
            members = parts[place + 1 :]
            if parts[place] in known and (not members or parts[place] in ("HMM", "Family")):
                target = ".".join([known[parts[place]], *members])
                return f"[`{'.'.join(parts[place:])}`][{target}]"
        return f"`{parts[-1]}`"
    return f"`{name}`"

"""A griffe extension that converts docstrings in Hugging Face's grammar to Markdown, with links for cross references.

Griffe's parser for Google's similar grammar takes "`int`, *optional*" for the name of a type, so sections are
converted here. An entry "name (type): text" of `Args:` or `Attributes:`, or "type: text" of `Raises:`, becomes a list
item. [`~hmm_datasets.x.Y`] becomes a link if `Y` is on a page of the reference, else code. A field of a dataclass is
described by its help text.
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
    """Converts each docstring of the package when its object is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Convert the docstring of a module, class, function or attribute."""
        if obj.is_attribute and obj.docstring is None:
            text = field_help(str(obj.value)) if obj.value is not None else None
            if text is not None:
                obj.docstring = griffe.Docstring(text, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def field_help(value: str) -> str | None:
    """The help text of a dataclass field, from the source of its default value; None if it has none."""
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
    """Convert a docstring to Markdown.

    Args:
        docstring (`str`): a docstring in Hugging Face's grammar, without the indentation that it has in the source.
    """
    lines = docstring.splitlines()
    result: list[str] = []
    index = 0
    while index < len(lines):
        section = _SECTION.match(lines[index])
        index += 1
        if section is None:
            result.append("" if lines[index - 1].strip() == "Example:" else lines[index - 1])
            continue
        begin = index
        while index < len(lines) and (not lines[index].strip() or lines[index].startswith("    ")):
            index += 1
        body = textwrap.dedent("\n".join(lines[begin:index])).strip("\n")
        result += ["", f"**{SECTIONS[section[1]]}**", "", *_entries(body, section[1]), ""]
    text = "\n".join(result)
    text = re.sub(r"```python\n(?=\s*>>>)", "```pycon\n", text)
    text = re.sub(r"\n+```\n", "\n```\n", text + "\n")
    text = re.sub(r"  # (doctest|noqa): ?\S+( \S+)?$", "", text, flags=re.MULTILINE)
    return _outside_code(text, lambda part: _REFERENCE.sub(lambda found: link(found[1]), part))


def _entries(body: str, section: str) -> list[str]:
    """The entries of a section as list items; `Returns:` has a single entry, which becomes a paragraph."""
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
    """Split an entry at its first colon outside brackets and code, into names with types and text."""
    depth, code = 0, False
    for index, character in enumerate(line):
        if character == "`":
            code = not code
        depth += (character in "([") - (character in ")]")
        if character == ":" and depth == 0 and not code:
            return line[:index], line[index + 1 :].strip()
    return line, ""


def _outside_code(text: str, change) -> str:
    parts = re.split(r"(^\s*```.*?^\s*```\s*$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


def documented() -> dict[str, str]:
    """The names on the pages of the reference, each with its full path."""
    import hmm_datasets

    public = {name: f"hmm_datasets.{name}" for name in hmm_datasets.__all__ if name != "processes"}
    return public | {"Family": "hmm_datasets.hmm.families.family.Family"}


def link(name: str) -> str:
    """A reference as a link to the page that documents it, else as code."""
    known, parts = documented(), name.split(".")
    if parts[0] not in ("transformers", "accelerate", "matplotlib", "datasets"):
        for index in reversed(range(len(parts))):
            members = parts[index + 1 :]
            if parts[index] in known and (not members or parts[index] in ("HMM", "Family")):
                target = ".".join([known[parts[index]], *members])
                return f"[`{'.'.join(parts[index:])}`][{target}]"
        return f"`{parts[-1]}`"
    return f"`{name}`"

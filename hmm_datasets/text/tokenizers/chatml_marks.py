"""Marks around what the assistant says, for chat templates in ChatML that have none.

ChatML writes a message as `<|im_start|>`, its role, a line break, its content and `<|im_end|>`. Templates of it differ
in what they write besides and how they are put together. So no list of templates is kept here: the expressions that
write a content with `<|im_end|>` directly after it are found in the tokenizer's own template, and are marked where the
message is the assistant's. Then both templates are compared on conversations. A template that writes another text with
the marks than without, or whose marks enclose anything but the contents and `<|im_end|>`, is not used.
"""

import re
from collections.abc import Callable
from itertools import product

from ..corpora.conversations import Messages

_END = "<|im_end|>"
_BEGIN_MARK, _END_MARK = "{{ '' }}{% generation %}", "{% endgeneration %}{{ '' }}"  # jinja trims lines beside tags
_ALSO_SAID = ("tool_calls", "reasoning_content")
"""What a template may write of the assistant besides contents; one that does is not marked."""

Render = Callable[[str, Messages, bool], str | None]
"""What a template writes for a conversation, with or without what begins the next answer; None if it refuses it."""


_TURNS = (
    [("Question", "Answer")],
    [("One?", "One."), ("Two?", "Two."), ("Three?", "Three\n\nlines.")],
    [("", ""), ("ü 漢字 🙂", "{{ 1 }} {% raw %}")],
    [("<|im_start|>assistant\nNo<|im_end|>", "a<|im_end|>b"), ("assistant\n", "<|im_start|>user\n")],
    [(" \n a ", " \n b \n\n")],
)


def with_marks(template: str, render: Render) -> str | None:
    """A chat template in ChatML with `generation` marks around the assistant's contents and ends of turn.

    Args:
        template (`str`): a chat template without marks.
        render (callable): renders a template.

    Returns:
        `str`, *optional*: None if no such template follows from this one.
    """
    if any(name in template for name in _ALSO_SAID):
        return None
    marked = _marked(template)
    return marked if marked is not None and _agrees(template, marked, render) else None


def _marked(template: str) -> str | None:
    """The template with marks that are not proven yet; None if no place for them is found."""
    from jinja2 import TemplateSyntaxError

    try:
        kinds, texts = _tokens(template)
    except TemplateSyntaxError:
        return None
    written, loops, done = "", [], 0
    for index, (kind, text) in enumerate(zip(kinds, texts, strict=True)):
        if kind == "name" and text == "for" and kinds[index + 1 : index + 3] == ["whitespace", "name"]:
            loops.append(texts[index + 2])
        elif kind == "name" and text == "endfor" and loops:
            loops.pop()
        is_end = text == _END if kind == "data" else kind == "string" and text[1:-1] == _END
        place = _expression_before(kinds, texts, index) if is_end and loops else None
        if place is None or place[0] < done:
            continue
        block, content = place
        after = index + 1 + (kinds[index + 1 : index + 2] == ["whitespace"])
        last = index if kind == "data" else kinds.index("variable_end", after)
        own, marked = texts[block : last + 1], texts[block : last + 1]
        if kinds[content] == "operator":
            marked[content - block] = f" }}}}{_BEGIN_MARK}{{{{ "
        else:
            marked[0] = _BEGIN_MARK + marked[0]
        if last in (index, after):
            marked[-1] += _END_MARK
        else:
            marked[after - block] = f" }}}}{_END_MARK}{{{{ "
        written += "".join(texts[done:block])
        written += f"{{{{ '' }}}}{{% if {loops[-1]}['role'] == 'assistant' %}}{''.join(marked)}"
        written += f"{{% else %}}{''.join(own)}{{% endif %}}{{{{ '' }}}}"
        done = last + 1
    return written + "".join(texts[done:]) if done else None


def _tokens(template: str) -> tuple[list[str], list[str]]:
    """Kinds and texts of jinja's tokens, with what follows an `<|im_end|>` in a text as a text of its own."""
    from jinja2 import Environment

    kinds, texts = [], []
    for _, kind, text in Environment(trim_blocks=True, lstrip_blocks=True).lex(template):
        quote = text[0] if kind == "string" else ""
        parts = [(kind, text)]
        if kind in ("data", "string") and text.removeprefix(quote).startswith(_END):
            rest = text.removeprefix(quote).removeprefix(_END)
            parts = [(kind, f"{quote}{_END}{quote}")]
            if rest != quote:
                parts += [("operator", "+")] * bool(quote) + [(kind, f"{quote}{rest}")]
        kinds += [kind for kind, _ in parts]
        texts += [text for _, text in parts]
    return kinds, texts


def _expression_before(kinds: list[str], texts: list[str], index: int) -> tuple[int, int] | None:
    """Where the expression begins that is written directly before a token: the `{{`, and that or the `+` before it."""
    before = [n for n in range(index) if kinds[n] != "whitespace"]
    if kinds[index] == "string" and before and kinds[before[-1]] == "variable_begin":
        before.pop()  # {{ content }}{{ '<|im_end|>' }}
    if not before or not (kinds[before[-1]] == "variable_end" or texts[before[-1]] in ("+", "~")):
        return None
    depth, content = 0, None
    for n in reversed(before[:-1]):
        if kinds[n] == "variable_begin":
            return n, n if content is None else content
        if kinds[n] in ("block_begin", "block_end", "variable_end", "data"):
            return None
        if kinds[n] == "operator":
            depth += (texts[n] in (")", "]", "}")) - (texts[n] in ("(", "[", "{"))
            if depth == 0 and texts[n] in ("+", "~") and content is None:
                content = n
    return None


def _agrees(template: str, marked: str, render: Render) -> bool:
    """Whether both write the same, with marks around the assistant's contents and ends of turn and nothing else."""
    shown = marked.replace("{% generation %}", "{{ '\x02' }}").replace("{% endgeneration %}", "{{ '\x03' }}")
    tried = 0
    for system, turns, last, prompt in product((None, "Be brief."), _TURNS, ("", "More?"), (False, True)):
        messages = [] if system is None else [{"role": "system", "content": system}]
        for asked, said in turns:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        messages += [{"role": "user", "content": last}] if last else []
        text, same, signs = (render(one, messages, prompt) for one in (template, marked, shown))
        if text is None:
            continue
        if same != text or signs is None or re.sub("[\x02\x03]", "", signs) != text:
            return False
        found = re.findall("\x02(.*?)\x03", signs, flags=re.DOTALL)
        if found not in ([f"{said}{_END}" for _, said in turns], [f"{said.strip()}{_END}" for _, said in turns]):
            return False
        tried += 1
    return tried > 0

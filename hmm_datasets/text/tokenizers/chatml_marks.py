"""Marks around what the assistant says, for chat templates in ChatML that have none.

ChatML writes a message as `<|im_start|>`, its role, a line break, its content and `<|im_end|>`. Templates of it differ
in the system message that they write where a conversation has none, and in how they are put together. So no list of
templates is kept here: a template with marks is made that writes what the tokenizer's own writes before the first
question, and both are compared on conversations. One that writes another text than the tokenizer's own, or whose marks
enclose anything but the contents and `<|im_end|>`, is not used.
"""

import json
import re
from collections.abc import Callable
from itertools import product

from ..corpora.conversations import Messages

_BEGIN, _END = "<|im_start|>", "<|im_end|>"
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
    question = {"role": "user", "content": "Question"}
    without = render(template, [question], False)
    beside = render(template, [{"role": "system", "content": "Be brief."}, question], False)
    prompted = render(template, [question], True)
    if any(name in template for name in _ALSO_SAID) or without is None or beside is None or prompted is None:
        return None
    start = beside.partition(f"{_BEGIN}system")[0]
    prompt = prompted.removeprefix(without)
    default = without.partition(f"{_BEGIN}user")[0].removeprefix(start)
    for content in ("m['content']", "m['content'] | trim"):
        said = f"{{{{ {content} }}}}{{{{ '{_END}' }}}}"
        marked = (
            f"{{{{ {json.dumps(start)} }}}}{{% for m in messages %}}"
            f"{{% if loop.first and m['role'] != 'system' %}}{{{{ {json.dumps(default)} }}}}{{% endif %}}"
            f"{{{{ '{_BEGIN}' + m['role'] + '\\n' }}}}{{% if m['role'] == 'assistant' %}}"
            f"{{% generation %}}{said}{{% endgeneration %}}{{% else %}}{said}{{% endif %}}{{{{ '\\n' }}}}"
            f"{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {json.dumps(prompt)} }}}}{{% endif %}}"
        )
        if _agrees(template, marked, render):
            return marked
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
        text, same, signs = (render(variant, messages, prompt) for variant in (template, marked, shown))
        if text is None:
            continue
        if same != text or signs is None or re.sub("[\x02\x03]", "", signs) != text:
            return False
        marked_words = re.findall("\x02(.*?)\x03", signs, flags=re.DOTALL)
        if marked_words not in (
            [f"{said}{_END}" for _, said in turns],
            [f"{said.strip()}{_END}" for _, said in turns],
        ):
            return False
        tried += 1
    return tried > 0

"""Marks around what the assistant says, for chat templates in ChatML that have none and that TRL does not know.

ChatML writes a message as `<|im_start|>`, its role, a line break, its content and `<|im_end|>`. Templates of it differ
in the system message that they write where a conversation has none. So no list of templates is kept here: a template
with marks is made that writes what the tokenizer's own writes before the first question, and is used if both write the
same conversations.
"""

import json
from collections.abc import Callable

from ..corpora.conversations import Messages

_BEGIN, _END = "<|im_start|>", "<|im_end|>"
_ALSO_SAID = ("tool_calls", "reasoning_content")
"""What a template may write of the assistant besides contents; one that does is not marked."""
_TALK = [
    *({"role": "user", "content": " \nü {{ 1 }} <|im_end|>"}, {"role": "assistant", "content": "One.\n\nTwo."}),
    *({"role": "user", "content": "More?"}, {"role": "assistant", "content": ""}),
]


def with_marks(template: str, render: Callable[[str, Messages, bool], str | None]) -> str | None:
    """A chat template in ChatML with `generation` marks around the assistant's contents and ends of turn.

    Args:
        template (`str`): a chat template without marks.
        render (callable): what a template writes for a conversation, with or without what begins the next answer; None
            if it refuses it.

    Returns:
        `str`, *optional*: None if no such template follows from this one.
    """
    system, question = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Question"}
    without, prompted = render(template, [question], False), render(template, [question], True)
    beside = render(template, [system, question], False)
    if any(name in template for name in _ALSO_SAID) or without is None or beside is None or prompted is None:
        return None
    start = beside.partition(f"{_BEGIN}system")[0]
    default = without.partition(f"{_BEGIN}user")[0].removeprefix(start)
    marked = (
        f"{{{{ {json.dumps(start)} }}}}{{% for m in messages %}}"
        f"{{% if loop.first and m['role'] != 'system' %}}{{{{ {json.dumps(default)} }}}}{{% endif %}}"
        f"{{{{ '{_BEGIN}' + m['role'] + '\\n' }}}}{{% if m['role'] == 'assistant' %}}"
        f"{{% generation %}}{{{{ m['content'] + '{_END}' }}}}{{% endgeneration %}}"
        f"{{% else %}}{{{{ m['content'] + '{_END}' }}}}{{% endif %}}{{{{ '\\n' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {json.dumps(prompted.removeprefix(without))} }}}}{{% endif %}}"
    )
    for messages in (_TALK, [system, *_TALK], [*_TALK, question]):
        for prompt in (False, True):
            text = render(template, messages, prompt)
            if text is None or render(marked, messages, prompt) != text:
                return None
    return marked

"""A model as lm-evaluation-harness asks for it: scores of continuations, and greedy answers, after chat prompts.

It is an `LM` of the harness that computes with the functions of the other evaluations ([`score_rows`] and
[`continue_rows`]) instead of the harness's `HFLM`, which is made for texts. For a chat prompt `HFLM`

- moves white space at the end of the prompt into the answer, so that after `<|im_start|>assistant` a model has to
  predict a line break, which fine-tuning never asked of it, before the letter counts as its most likely answer;
- cuts a prompt that is too long on the left, through the template, and stops with an assertion if the context has no
  room for the longest answer;
- ends answers at EOS only, unless the generation config of the model names the token that ends a turn.

Log-likelihoods and answers are otherwise the same; a test compares them. Prompts are encoded without added special
tokens, since the chat template writes its own.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from ...errors import InputError
from ...runtime.progress import progress_bar
from ...text.tokenizers.chat_encoding import encode_conversation
from ...text.tokenizers.chat_templates import stop_tokens
from ...text.tokenizers.encoding import encode_texts
from ..chat.measures import continue_rows
from ..scoring import Row, context_limit, score_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class ChatLanguageModel(LM):
    """A causal language model with a chat template, in one process.

    Args:
        model ([`~transformers.PreTrainedModel`]): the model.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer, with a chat template.
        batch_size (`int`): rows per forward pass.

    Attributes:
        too_long (`set` of `str`): prompts that the context of the model has no room for. They are not put to it.
    """

    def __init__(self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", batch_size: int = 32):
        super().__init__()
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.limit = context_limit(model) or float("inf")
        self.too_long: set[str] = set()
        self._prompts: dict[str, list[int]] = {}

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, by which the harness keeps prompts."""
        return self.tokenizer.name_or_path.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The chat template, for the harness's records."""
        return self.tokenizer.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as a prompt, whose tokens are kept: its text alone does not say which of them it spells."""
        prompt = self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        self._prompts[prompt] = encode_conversation(
            self.tokenizer, chat_history, add_generation_prompt=add_generation_prompt
        )
        return prompt

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """For each prompt and continuation the log-likelihood in nats, and whether each token is the most likely one.

        The continuations of a prompt stand next to each other. For a prompt that is too long they are all -inf, False.
        """
        groups: dict[str, list[Row]] = {}
        for prompt, continuation in (request.args for request in requests):
            begun = self._encode(prompt)
            groups.setdefault(prompt, []).append(Row(begun + self._after(prompt, begun, continuation), len(begun)))
        self.too_long |= {
            prompt for prompt, rows in groups.items() if max(len(row.tokens) for row in rows) - 1 > self.limit
        }
        asked = [rows for prompt, rows in groups.items() if prompt not in self.too_long]
        with progress_bar(len(asked), " questions", desc="chat_core") as bar:
            found = score_rows(self.model, asked, batch_size=self.batch_size, progress=bar.update)
        scores = iter(zip((-found.nats).tolist(), found.greedy.tolist(), strict=True))
        by_prompt = {
            prompt: iter([(float("-inf"), False) if prompt in self.too_long else next(scores) for _ in rows])
            for prompt, rows in groups.items()
        }
        return [next(by_prompt[request.args[0]]) for request in requests]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """The greedy answer to each prompt, up to the token that ends a turn, or `max_gen_toks` tokens.

        In a context of less than twice that many tokens answers get half of it. The tasks have no other stops.
        """
        stop = stop_tokens(self.tokenizer, self.model.generation_config)
        answers: dict[int, str] = {}
        for wanted in dict.fromkeys(request.args[1]["max_gen_toks"] for request in requests):
            room = int(min(wanted, self.limit // 2))
            chosen = [index for index, request in enumerate(requests) if request.args[1]["max_gen_toks"] == wanted]
            prompts = [requests[index].args[0] for index in chosen]
            rows = [self._encode(prompt) for prompt in prompts]
            self.too_long |= {
                prompt for prompt, row in zip(prompts, rows, strict=True) if len(row) + room > self.limit
            }
            generated = continue_rows(
                *(self.model, self.tokenizer, rows), stop=stop, max_new_tokens=room, batch_size=self.batch_size
            )
            answers |= {index: self._text(tokens, stop) for index, tokens in zip(chosen, generated, strict=True)}
        return [answers[index] for index in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Not a question to a chat model."""
        raise InputError("chat_core: its tasks have questions; the loss of a text is measured by the task text")

    def _encode(self, text: str) -> list[int]:
        known = self._prompts.get(text)
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] if known is None else known

    def _after(self, prompt: str, begun: list[int], continuation: str) -> list[int]:
        """The tokens of a continuation after exactly the tokens of the prompt, as in generation."""
        whole = self._encode(prompt + continuation)
        if whole[: len(begun)] == begun and len(whole) > len(begun):
            return whole[len(begun) :]
        return encode_texts(self.tokenizer, [continuation])[0]

    def _text(self, tokens: Sequence[int], stop: Sequence[int]) -> str:
        end = next((index for index, token in enumerate(tokens) if token in stop), len(tokens))
        return self.tokenizer.decode(tokens[:end], skip_special_tokens=True)

"""A model that answers in a conversation, or continues a text, while its words are shown.

A model chats if its tokenizer has a chat template, and its generation config stops at the token with which that
template ends a turn. Otherwise it is a base model: it would not end its turn, so texts are continued instead.

Generation is that of transformers, with a streamer for the words; Ctrl-C ends it. An answer is a function of the
conversation and the seed. Each answer reads the whole conversation again, so it costs the forward pass of that, and
one pass per new token.
"""

import copy
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from transformers import AutoModelForCausalLM, TextStreamer

from ...compat.transformers_caches import generate
from ...errors import InputError
from ...hmm.tokenizer import check_symbols
from ...runtime.once import one_command
from ...text.corpora.conversations import Messages
from ...text.tokenizers.chat_encoding import encode_conversation
from ...text.tokenizers.chat_templates import end_of_turn, stop_tokens
from ...text.tokenizers.encoding import encode_texts
from ...training.pretrained import load_pretrained, tokenizer_of
from ..model_limits import beginning_token, context_limit
from .sampling import Sampling

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

Mode = Literal["auto", "chat", "continue"]

TEMPERATURE = 0.7
"""Temperature for a model whose generation config does not sample."""


@dataclass(frozen=True)
class Answer:
    """What a model said.

    Attributes:
        text (`str`): the words, without special tokens.
        cut (`str`, *optional*): why it ended before the model ended its turn: Ctrl-C, a full context window, or
            `max_new_tokens`.
    """

    text: str
    cut: str | None


class ChatModel:
    """A model with its tokenizer, ready to answer.

    Args:
        name (`str`): a folder, or a name on the Hub with an optional revision, as `"USER/NAME@step-1000"`.
        sampling ([`Sampling`]): how answers are drawn.
        mode (`str`, *optional*, defaults to `"auto"`): `"chat"` or `"continue"` to decide whether the model chats.

    Raises:
        `InputError`: there is no such model, it has no tokenizer, or one of more tokens than it has.
    """

    @one_command()
    def __init__(self, name: str, sampling: Sampling, mode: Mode = "auto"):
        self.name = name
        self.sampling = sampling
        self.seed = secrets.randbelow(1 << 32) if sampling.seed is None else sampling.seed
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
        self.model: PreTrainedModel = load_pretrained(AutoModelForCausalLM, name).to(device).eval()
        self.tokenizer = _tokenizer(name, self.model)
        self.window = context_limit(self.model)
        self.not_chat_reason = (
            None if mode == "chat" else not_chat_reason(self.tokenizer, self.model.generation_config)
        )
        if mode == "continue" and self.not_chat_reason is None:
            self.not_chat_reason = "--mode continue"
        if mode == "chat" and self.tokenizer.chat_template is None:
            raise InputError(f"--mode chat: the tokenizer of {name} has no chat template; leave --mode out")
        self.generation = self._generation_config()

    @property
    def chats(self) -> bool:
        """Whether the model answers; otherwise it continues texts."""
        return self.not_chat_reason is None

    def answer(self, messages: Messages, show: Callable[[str], object]) -> Answer:
        """Answer the last message, or continue it.

        Args:
            messages (list of `dict`): the conversation. A quarter of the context window, or `max_new_tokens` if that
                is less, is kept for the answer.
            show (callable): called with each piece of text as soon as whole words are there.

        Raises:
            `InputError`: the chat template refuses the messages, they are too long for the context window, or a model
                of symbols does not know one of the words.
        """
        tokens = self.tokens(messages)
        room = math.inf if self.window is None else self.window - len(tokens)
        if self.window is not None and room < min(self.sampling.max_new_tokens, self.window // 4):
            raise InputError(
                f"the conversation needs {len(tokens):,} tokens of the context window of {self.window:,}, which "
                "leaves too few for an answer; forget it (/clear), write a shorter message, or lower --max_new_tokens"
            )
        generation = copy.deepcopy(self.generation)
        generation.max_new_tokens = int(min(self.sampling.max_new_tokens, room))
        prompt = torch.tensor([tokens], device=self.model.device)
        device = self.model.device
        words = _Words(self.tokenizer, show)
        try:
            with (
                torch.random.fork_rng([device] if device.type != "cpu" else [], device_type=device.type),
                torch.inference_mode(),
            ):
                torch.manual_seed(_seed(self.seed, len(messages)))
                output = generate(
                    self.model,
                    input_ids=prompt,
                    attention_mask=torch.ones_like(prompt),
                    generation_config=generation,
                    streamer=words,
                )
        except KeyboardInterrupt:
            return Answer(words.text, "stopped")
        new = output[0, len(tokens) :].tolist()
        cut = f"the context window of {self.window:,} tokens is full" if self.window is not None else None
        if new and new[-1] in (generation.eos_token_id or ()):
            cut = None
        elif len(new) == self.sampling.max_new_tokens:
            cut = f"stopped after {len(new):,} tokens; --max_new_tokens allows more"
        return Answer(self.tokenizer.decode(new, skip_special_tokens=True), cut)

    def tokens(self, messages: Messages) -> list[int]:
        """The tokens that the model reads before it answers."""
        if self.chats:
            return encode_conversation(self.tokenizer, messages, add_generation_prompt=True)
        beginning, _ = beginning_token(self.tokenizer)
        words = messages[-1]["content"]
        check_symbols(self.tokenizer, words)
        tokens = ([] if beginning is None else [beginning]) + encode_texts(self.tokenizer, [words])[0]
        if not tokens:
            raise InputError("there is nothing to continue; write some words")
        return tokens

    def _generation_config(self) -> "GenerationConfig":
        """The model's generation config with the settings of `sampling`, and a token to stop at."""
        config = copy.deepcopy(self.model.generation_config)
        temperature = self.sampling.temperature
        if temperature is None:
            temperature = (config.temperature or 1.0) if config.do_sample else TEMPERATURE
        if not config.do_sample:
            config.top_k = config.top_p = None
        config.max_length = None
        config.eos_token_id = stop_tokens(self.tokenizer, config) or None
        if config.pad_token_id is None:
            config.pad_token_id = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        config.do_sample = temperature > 0
        config.temperature = float(temperature) if temperature > 0 else None
        # Without values transformers would draw from the 50 most likely tokens only.
        config.top_k = (config.top_k or 0) if temperature > 0 else None
        config.top_p = (config.top_p or 1.0) if temperature > 0 else None
        return config


def not_chat_reason(tokenizer: "PreTrainedTokenizerBase", generation_config: "GenerationConfig") -> str | None:
    """Why a model does not chat, in words; None if it does.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): tokenizer of the model.
        generation_config ([`~transformers.GenerationConfig`]): generation config of the model.
    """
    if tokenizer.chat_template is None:
        return "its tokenizer has no chat template"
    end, stops = end_of_turn(tokenizer), generation_config.eos_token_id
    if end is None or end in (stops if isinstance(stops, list | tuple) else [stops]):
        return None
    return (
        f"its generation config does not stop at {tokenizer.convert_ids_to_tokens(end)}, with which its chat template "
        "ends a turn; --mode chat talks to it nevertheless"
    )


def _tokenizer(name: str, model: "PreTrainedModel") -> "PreTrainedTokenizerBase":
    tokenizer = tokenizer_of(name, symbols=True)
    if tokenizer is None:
        raise InputError(f"{name}: has no tokenizer, so words mean nothing to it; save one in its folder")
    count, known = len(tokenizer), model.config.get_text_config().vocab_size
    if count > known:
        raise InputError(
            f"{name}: its tokenizer has {count:,} tokens, but the model has {known:,}; save the tokenizer it was "
            "trained with in its folder"
        )
    return tokenizer


def _seed(*numbers: int) -> int:
    """A seed that is a function of several numbers, and differs for each."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


class _Words(TextStreamer):
    """Passes on the text of an answer, in whole words, and keeps it."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", show: Callable[[str], object]):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.show, self.text = show, ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self.text += text
            self.show(text)

"""The subcommand that talks to a model. Slow imports are in the functions that need them, as in `cli`."""

import argparse
import secrets
import sys

from ..errors import InputError


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hmm-datasets chat`."""
    command.add_argument("model", metavar="MODEL", help="folder, or Hub name with an optional @REVISION")
    command.add_argument(
        "--prompt",
        metavar="TEXT",
        help="answer this on stdout and end; so does a pipe, whose whole text is the prompt",
    )
    command.add_argument("--system", metavar="TEXT", help="system prompt")
    command.add_argument(
        "--temperature", type=float, metavar="T", help="0 is greedy; default the model's own if it samples, else 0.7"
    )
    command.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the most likely tokens with this total probability"
    )
    command.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely tokens; 0 for all")
    command.add_argument("--seed", type=int, metavar="N", help="same seed, same answers; default one at random")
    command.add_argument(
        "--max-new-tokens", type=int, default=512, metavar="N", help="maximum number of tokens per answer, default 512"
    )
    command.add_argument(
        "--mode",
        choices=("auto", "chat", "continue"),
        default="auto",
        help="answer messages or continue texts; default by the model: a base model continues",
    )
    command.epilog = (
        "In the chat, /help lists the commands. A message of several lines is typed between two lines of "
        '""". Ctrl-C stops an answer, Ctrl-D ends the chat.'
    )


def chat(arguments: argparse.Namespace) -> int:
    """Talk in the terminal, or answer one prompt."""
    prompt = arguments.prompt
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
    if prompt is not None and not prompt.strip():
        raise InputError("the prompt is empty; write some words in --prompt, or into the pipe")

    from transformers.utils import logging

    from ..evaluation.chat.session import Session, answer_once
    from ..evaluation.chat.speaker import Sampling, Speaker

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    sampling = Sampling(arguments.temperature, arguments.top_p, arguments.top_k, seed, arguments.max_new_tokens)
    speaker = Speaker(arguments.model, sampling, arguments.mode)
    if prompt is not None:
        answer_once(speaker, prompt, arguments.system)
    else:
        Session(speaker, arguments.system).run()
    return 0

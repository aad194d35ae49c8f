"""Fine-tunes a tiny model on conversations, measures it and talks to it; prints what the network was asked for.

Nothing of the environment keeps libraries offline. Every look-up of a name and every message to another machine is
noted and refused.
"""

import importlib
import json
import sys
from pathlib import Path

asked: list[str] = []


def refuse(event: str, arguments: tuple) -> None:
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        place = arguments[0]
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        place = arguments[1][0] if isinstance(arguments[1], tuple) else None  # else a socket of this machine
    else:
        return
    if place not in (None, "127.0.0.1", "::1", "localhost"):
        asked.append(f"{event} {place}")
        raise OSError(f"no network here, not even {place}")


sys.addaudithook(refuse)


def main(model: str, conversations: str, output_dir: str, **settings) -> None:
    """Settings are those of fine-tuning."""
    from hmm_datasets import EvaluationSettings, evaluate_model
    from hmm_datasets.evaluation.chat.chat_model import ChatModel
    from hmm_datasets.evaluation.chat.sampling import Sampling
    from hmm_datasets.evaluation.chat.session import answer_once
    from hmm_datasets.training.settings import SFTSettings
    from hmm_datasets.training.sources import ConversationSettings

    sys.path[:0] = [str(Path(__file__).parents[2] / folder) for folder in ("recipes", "recipes/common")]
    chat = ConversationSettings(model, conversations, max_new_tokens=2, num_questions=2)
    importlib.import_module("sft").main(chat, SFTSettings(output_dir, **settings))
    chosen = {"tasks": ["chat"], "chat_data": conversations, "chat_max_new_tokens": 2, "num_sequences": 4}
    evaluate_model(EvaluationSettings(output_dir, **chosen))
    answer_once(ChatModel(output_dir, Sampling(temperature=0, max_new_tokens=2)), "Who is it?", None)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
    print(json.dumps(asked))

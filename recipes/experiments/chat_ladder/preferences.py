"""Preferences between a model's own answers: to each question the right answer, and a wrong one that it gave.

    python recipes/experiments/chat_ladder/preferences.py --model outputs/chat_ladder/sft --output preferences.jsonl

The model answers questions of `story-questions` that it was not fine-tuned on (those after the first 8,000), by
sampling at temperature 1. A question whose answer is right makes no pair. Rows are written in the order of the
questions, and the file only once it is complete.
"""

import argparse
from itertools import islice
from pathlib import Path


def main() -> None:
    """Sample answers and write the pairs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    from hmm_datasets.evaluation.chat.answers import answer, is_right, questions_of
    from hmm_datasets.files import write_jsonl
    from hmm_datasets.runtime.one_line_errors import one_line_errors
    from hmm_datasets.text.corpora.loading import load_corpus
    from hmm_datasets.text.tokenizers.chat_templates import stop_tokens
    from hmm_datasets.training.pretrained import load_pretrained

    parser = argparse.ArgumentParser(description="Preferences between a model's own answers.")
    parser.add_argument("--model", required=True, help="folder of the fine-tuned model")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--first", type=int, default=8000, metavar="N", help="first conversation, default 8000")
    parser.add_argument("--max_prompts", type=int, default=4000, metavar="N", help="conversations, default 4000")
    arguments = parser.parse_args()
    if arguments.output.exists():
        print(f"{arguments.output}: exists; delete it to make it again")
        return
    with one_line_errors():
        tokenizer = load_pretrained(AutoTokenizer, arguments.model)
        model = load_pretrained(AutoModelForCausalLM, arguments.model)
        rows = load_corpus("story-questions", kind="conversations")
        asked = questions_of(islice(rows, arguments.first, arguments.first + arguments.max_prompts))
        set_seed(0)
        torch.set_num_threads(2)
        stop = stop_tokens(tokenizer, model.generation_config)
        answers = answer(model, tokenizer, asked, stop=stop, max_new_tokens=16, batch_size=64, temperature=1.0)
        pairs = [
            {
                "prompt": question.messages,
                "chosen": [{"role": "assistant", "content": question.expected}],
                "rejected": [{"role": "assistant", "content": said.strip()}],
            }
            for question, said in zip(asked, answers, strict=True)
            if said.strip() and not is_right(question, said)
        ]
        write_jsonl(arguments.output, pairs)
        print(f"{arguments.output}: {len(pairs):,} pairs from {len(asked):,} questions")


if __name__ == "__main__":
    main()

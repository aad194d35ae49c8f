"""What a model of the words of an HMM writes.

python recipes/experiments/tinystories_hmm/sentences.py outputs/llama said.txt

The file has 40 lines of 40 words, drawn at temperature 1.
"""

import sys

LINES = LENGTH = 40


def main(folder: str, file: str) -> None:
    """Draw from the model in a folder, whose tokens are the names of symbols, and write the file."""
    import torch
    from transformers import AutoModelForCausalLM

    from hmm_datasets.evaluation.policy import draw_from_policy
    from hmm_datasets.files import atomic_file
    from hmm_datasets.text.tokenizers.sentences import as_text
    from hmm_datasets.training.pretrained import load_pretrained, tokenizer_of

    tokenizer = tokenizer_of(folder, symbols=True)
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer) - 1))  # the last one begins a sequence
    model = load_pretrained(AutoModelForCausalLM, folder).eval()
    torch.manual_seed(0)
    with torch.inference_mode():
        rows = draw_from_policy(model, LINES, LENGTH, len(words)).tolist()
    with atomic_file(file) as temporary:
        temporary.write_text("".join(as_text(words[symbol] for symbol in row) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The first hour with a book: a file of text becomes tokens, a model and a conversation, by three commands."""

import pytest

from hmm_datasets.files import read_json

pytestmark = pytest.mark.thorough

BOOK = "\n".join(
    f"Chapter {number}\n\nThe {animal} went to the {place}. There it met a {other}, and they walked home together."
    for number, (animal, place, other) in enumerate(
        [("cat", "river", "fox"), ("dog", "hill", "hen"), ("owl", "wood", "bear"), ("pig", "town", "goat")] * 60
    )
)


def test_a_book_becomes_a_model_that_goes_on_writing(hmm_datasets_command, tmp_path):
    (tmp_path / "mybook.txt").write_text(BOOK)
    said = hmm_datasets_command("tokenize", "mybook.txt", "--vocab_size", 300)
    assert "text train: 1 documents" in said
    small = ("--length", 32, "--max_steps", "4e1", "--learning_rate", 3e-3, "--global_batch_size", 8)
    flags = ("--tokens", "outputs/mybook", "--output_dir", "outputs/model", "--model", "1m", *small)
    hmm_datasets_command("pretrain", *flags, "--per_device_train_batch_size", 8)
    summary = read_json(tmp_path / "outputs" / "model" / "summary.json")
    assert summary["tokens"] == 40 * 8 * 32
    assert summary["evaluation"]["loss"] < 3.5  # from log(300) = 5.7
    asked = ("--prompt", "The cat", "--temperature", 0, "--max_new_tokens", 12)
    assert "the" in hmm_datasets_command("chat", "outputs/model", *asked)

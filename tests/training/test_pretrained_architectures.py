"""Models as they are published, small and random: every measure and every recipe beside a plain loop.

Each has the oddities of its kind: no BOS, a tied or untied head, tokens added later or rows of the embedding that no
token has, left padding, sliding windows, experts, a state in place of attention, no generation config.
"""

import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from tiny_chat import WORDS, message
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, MixtralConfig

from hmm_datasets import HMMSequences, probe_beliefs, processes
from hmm_datasets.evaluation.benchmark import BenchmarkSettings
from hmm_datasets.evaluation.benchmark.held_out import open_benchmark
from hmm_datasets.evaluation.benchmark.report import run_benchmark
from hmm_datasets.evaluation.chat.chat_model import ChatModel
from hmm_datasets.evaluation.chat.sampling import Sampling
from hmm_datasets.evaluation.evaluation import evaluate_model
from hmm_datasets.evaluation.settings import EvaluationSettings
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.chat_encoding import encode_conversation
from hmm_datasets.training.post_training.trainers import FineTuner, PreferenceTuner
from hmm_datasets.training.pretrained import load_pretrained
from hmm_datasets.training.settings import DPOSettings, SFTSettings

SIZE = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"max_position_embeddings": 320, "initializer_range": 0.3},
}
ARCHITECTURES = {
    # GPT-2 names its sizes differently and has a tied head, no padding token, and dropout, which is left out here.
    "gpt2": {
        **{"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 320, "initializer_range": 0.3},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    },
    "gpt_neox": {"tie_word_embeddings": False},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 24, "tie_word_embeddings": True},
    "gemma3_text": {"num_key_value_heads": 1, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16},
    "mistral": {"num_key_value_heads": 1, "sliding_window": 6},
    "olmo2": {"num_key_value_heads": 2},
    "mamba": {"state_size": 4, "tie_word_embeddings": False},
    "mixtral": {"num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2},
}
NO_BOS = ("gpt_neox", "qwen3", "olmo2")
MORE_EMBEDDINGS = {"qwen3": 7, "gpt_neox": 3}  # than the tokenizer has tokens
TEXTS = [f"Say {' '.join(WORDS[first : first + 6])}." for first in range(5)]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request, tmp_path_factory) -> str:
    """A published model: weights, tokenizer, and what else its kind has."""
    name, place = request.param, tmp_path_factory.mktemp(request.param)
    tokenizer = train_bpe([*TEXTS, "ABCD"] * 8, 300, show_progress=False)
    if name in NO_BOS:
        tokenizer.bos_token = None
    if name in ("mistral", "gemma3_text"):
        tokenizer.padding_side = "left"
    if name == "gemma3_text":
        tokenizer.add_tokens(["<image>"])
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        name,
        **{"vocab_size": len(tokenizer) + MORE_EMBEDDINGS.get(name, 0), "bos_token_id": tokenizer.bos_token_id},
        **{"eos_token_id": tokenizer.eos_token_id, "pad_token_id": None if name == "gpt2" else tokenizer.pad_token_id},
        **{**({} if name == "gpt2" else SIZE), **ARCHITECTURES[name]},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    if name in ("mamba", "olmo2"):
        (place / "generation_config.json").unlink()
    return str(place)


@pytest.fixture(scope="module")
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def nats(model, tokens: list[int], first: int = 1) -> float:
    """The loss of the tokens from the first on, in nats, by one pass over this row and nothing else."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].double()
    rows = logits.log_softmax(-1)[torch.arange(first - 1, len(tokens) - 1), torch.tensor(tokens[first:])]
    return -rows.sum().item()


def begun(tokenizer, text: str) -> list[int]:
    """A text after the token that a model reads first, where the tokenizer has one: BOS, or else EOS."""
    first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return [first, *tokenizer.encode(text, add_special_tokens=False)]


def of_experts(logged: dict) -> float:
    """What TRL adds to the loss of a mixture of experts, so that they share the work."""
    return MixtralConfig().router_aux_loss_coef * logged.get("aux_loss", 0.0)


def first_step(trainer_class: type, settings_class: type, folder: str, rows: list[dict], place) -> dict:
    """What is logged of one step that changes nothing."""
    trainer = trainer_class(
        model=load_pretrained(AutoModelForCausalLM, folder),
        args=settings_class(
            str(place), max_steps=1, global_batch_size=4, per_device_train_batch_size=2, learning_rate=0.0,
            max_length=64, logging_steps=1, report_to="none",
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip
    trainer.train()
    (found,) = [row for row in trainer.state.log_history if "loss" in row]
    return found


@pytest.mark.thorough
def test_held_out_text_has_the_loss_of_a_plain_loop(folder, model, tokenizer, tmp_path):
    (tmp_path / "text.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in TEXTS))
    report = evaluate_model(
        EvaluationSettings(
            model=folder, targets=[str(tmp_path / "text.jsonl")], tasks=["text"], test_fraction=1.0,
            output_dir=str(tmp_path / "evaluation"), batch_size=3,
        )
    )  # fmt: skip
    rows = [begun(tokenizer, text) for text in TEXTS]
    expected = sum(nats(model, row) for row in rows)
    found = report["text"]
    assert found["num_tokens"] == sum(len(row) - 1 for row in rows)
    assert found["nats_per_token"] * found["num_tokens"] == pytest.approx(expected, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(expected / math.log(2) / sum(map(len, TEXTS)), rel=1e-5)


@pytest.mark.thorough
def test_sequences_of_a_process_have_the_loss_of_a_plain_loop(folder, model, tokenizer, tmp_path):
    settings = BenchmarkSettings(model=folder, process=["even"], num_sequences=4, output_dir=str(tmp_path / "b"))
    report = run_benchmark(settings)
    (held_out,) = open_benchmark(None, processes=["even"], num_sequences=4).processes
    rows = [begun(tokenizer, text) for text in held_out.texts()]
    expected = np.mean([nats(model, row, first=2) for row in rows]) / (held_out.tokens.shape[1] - 1)
    assert report["processes"]["even"]["model"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.thorough
def test_beliefs_are_read_from_the_hidden_states(folder, model):
    hmm = processes.mess3()
    rows = HMMSequences(hmm, length=10, first=2**63, num_sequences=60)
    found = probe_beliefs(load_pretrained(AutoModelForCausalLM, folder), hmm, rows, controls=False)

    def last(tokens):
        with torch.no_grad():
            return model(tokens, output_hidden_states=True).hidden_states[-1]

    plain = probe_beliefs(last, hmm, rows, controls=False)["layers"]["0"]
    assert found["layers"]["2"]["r2"] == pytest.approx(plain["r2"], abs=1e-4)
    assert 0 < plain["r2"] < 1


@pytest.mark.thorough
def test_the_loss_of_fine_tuning_is_that_of_what_the_assistant_says(folder, model, tokenizer, tmp_path):
    chats = [message("user", f"Say {word}.") + message("assistant", f"{word} {WORDS[0]}") for word in WORDS[:4]]
    found = first_step(FineTuner, SFTSettings, folder, [{"messages": chat} for chat in chats], tmp_path)
    said, count = 0.0, 0
    for chat in chats:
        whole = encode_conversation(tokenizer, chat)
        asked = encode_conversation(tokenizer, chat[:1], add_generation_prompt=True)
        end = whole.index(tokenizer.convert_tokens_to_ids("<|end|>"), len(asked)) + 1
        said, count = said + nats(model, whole[:end], first=len(asked)), count + end - len(asked)
    assert found["loss"] == pytest.approx(said / count + of_experts(found), rel=1e-4)


@pytest.mark.thorough
def test_preferences_begin_at_the_loss_of_a_coin_with_the_log_probabilities_of_a_plain_loop(
    folder, model, tokenizer, tmp_path
):
    pairs = [
        {
            "prompt": message("user", f"Say {word}."),
            "chosen": message("assistant", word),
            "rejected": message("assistant", f"{WORDS[5]} {word}"),
        }
        for word in WORDS[:4]
    ]
    found = first_step(PreferenceTuner, DPOSettings, folder, pairs, tmp_path)
    assert found["loss"] == pytest.approx(math.log(2) + of_experts(found), abs=1e-4)
    expected = []
    for pair in pairs:
        asked = encode_conversation(tokenizer, pair["prompt"], add_generation_prompt=True)
        expected.append(
            -nats(model, encode_conversation(tokenizer, pair["prompt"] + pair["chosen"]), first=len(asked))
        )
    assert found["logps/chosen"] == pytest.approx(np.mean(expected), rel=1e-4)


@pytest.mark.thorough
def test_answers_are_those_of_a_plain_loop(folder, model, tokenizer):
    loaded = ChatModel(folder, Sampling(temperature=0.0, max_new_tokens=8), mode="chat")
    asked = message("user", "Say two.")
    answer = loaded.answer(asked, show=lambda piece: None)
    tokens = encode_conversation(tokenizer, asked, add_generation_prompt=True)
    start, stops = len(tokens), {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|end|>")}
    while len(tokens) < start + 8 and tokens[-1] not in stops:
        with torch.no_grad():
            tokens.append(model(torch.tensor([tokens])).logits[0, -1].argmax().item())
    assert answer.text == tokenizer.decode(tokens[start:], skip_special_tokens=True)

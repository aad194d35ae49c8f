"""A plain `Trainer` with no argument but model, settings and data trains on every data set the README shows."""

import json

import numpy as np
import pytest
import torch
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

import hmm_datasets  # noqa: F401 (makes "hmm" and "token_shards" known)
from hmm_datasets.data.interleaving import InterleavedRows
from hmm_datasets.data.packing import PackedWindows
from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.data.windows import TokenWindows
from hmm_datasets.hmm import processes
from hmm_datasets.text.stream import TokenStream, write_tokens

HMM = processes.random(3, 16, alpha=0.1, seed=1)  # a few of its symbols are frequent, which is soon learned
LENGTH, STEPS, BATCH = 32, 16, 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    HMM.save_pretrained(folder / "hmm")
    lengths = np.random.default_rng(0).integers(20, 60, 400)
    documents = [HMM.sample(1, length, first=number)[0] + 1 for number, length in enumerate(lengths.tolist())]
    write_tokens(documents, folder / "tokens", vocab_size=17, eos_id=0, tokenizer_hash="", corpus="symbols")
    return folder


def windows(folders, kind=TokenWindows):
    return kind(TokenStream(folders / "tokens"), LENGTH, seed=0)


def stream(folders, name="hmm", **settings):
    source = "hmm" if name == "hmm" else "tokens"
    settings = {"data_dir": str(folders / source), "length": LENGTH, "split": "train", **settings}
    return load_dataset(name, cache_dir=str(folders / "cache"), **settings)


DATA = {
    "HMMSequences": lambda folders: HMMSequences(HMM, LENGTH),
    "HMMSequences that end": lambda folders: HMMSequences(HMM, LENGTH, num_sequences=1000),
    "HMM stream": lambda folders: stream(folders, streaming=True),
    "HMM stream in torch format": lambda folders: stream(folders, streaming=True).with_format("torch"),
    "prepared table": lambda folders: stream(folders, num_sequences=500),
    "token_shards stream": lambda folders: stream(folders, "token_shards", streaming=True),
    "TokenWindows": windows,
    "PackedWindows": lambda folders: windows(folders, PackedWindows),
    "InterleavedRows": lambda folders: InterleavedRows(
        [windows(folders), windows(folders, PackedWindows)], [0.3, 0.7], by="tokens"
    ),
    "InterleavedRows with an endless part": lambda folders: InterleavedRows(
        [windows(folders), HMMSequences(HMM, LENGTH - 1)], [1, 1]
    ),
}


def tiny_llama():
    """A model, and the list to which every row it sees is added."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model, rows = LlamaForCausalLM(LlamaConfig(vocab_size=17, max_position_embeddings=64, **sizes)), []
    model.register_forward_pre_hook(lambda _, __, inputs: rows.extend(inputs["input_ids"].tolist()), with_kwargs=True)
    return model, rows


@pytest.mark.thorough
@pytest.mark.parametrize("data", DATA)
def test_a_plain_trainer_learns_from_rows_that_all_differ(data, folders, tmp_path):
    model, rows = tiny_llama()
    settings = TrainingArguments(
        output_dir=str(tmp_path), max_steps=STEPS, logging_steps=1, learning_rate=1e-2, report_to="none"
    )
    trainer = Trainer(model, settings, train_dataset=DATA[data](folders))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == STEPS
    assert np.mean(losses[-4:]) < 0.9 * losses[0]
    assert len(rows) == STEPS * BATCH == len(set(map(tuple, rows)))


@pytest.mark.thorough
@pytest.mark.parametrize("data", ["HMMSequences", "HMM stream", "HMM stream in torch format"])
def test_a_resumed_plain_trainer_reads_the_rows_after_those_it_saw(data, folders, tmp_path):
    seen = []
    for steps, resume in ((3, None), (6, True)):
        model, rows = tiny_llama()
        settings = TrainingArguments(output_dir=str(tmp_path), max_steps=steps, save_steps=3, report_to="none")
        Trainer(model, settings, train_dataset=DATA[data](folders)).train(resume_from_checkpoint=resume)
        seen += rows
    assert [row[1:] for row in seen] == HMM.sample(6 * BATCH, LENGTH).tolist()


@pytest.mark.outside(
    "https://github.com/pytorch/pytorch/issues/30599",
    "the same rows from an iterable data set for any number of loader workers",
    "rows of a process keep their order, and a run resumed with another number of workers reads each row once",
)
def test_a_plain_trainer_resumed_with_another_number_of_workers_reads_every_row_once_and_in_order(folders, tmp_path):
    seen = []
    for steps, workers in ((40, 2), (80, 0), (120, 1)):  # more rows than are drawn at once
        model, rows = tiny_llama()
        settings = TrainingArguments(
            str(tmp_path), max_steps=steps, save_steps=40, dataloader_num_workers=workers, report_to="none"
        )
        Trainer(model, settings, train_dataset=HMMSequences(HMM, LENGTH)).train(resume_from_checkpoint=steps > 40)
        seen += rows
    assert [row[1:] for row in seen] == HMM.sample(120 * BATCH, LENGTH).tolist()


ARCHITECTURES = (
    *("gpt2", "openai-gpt", "bert", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom"),
    *("falcon", "mpt", "phi", "llama", "mistral", "qwen3", "gemma", "mamba"),
)
SPECIAL = {
    "bert": {"is_decoder": True},
    "gpt_neo": {"attention_types": [[["global"], 1]]},
    "gptj": {"rotary_dim": 4},
    **{kind: {"num_key_value_heads": 1} for kind in ("mistral", "qwen3", "gemma")},
}


def losses(kind, rows, folder) -> tuple[float, float]:
    """The loss that a plain Trainer finds, and the cross-entropy of all tokens but the first of each row."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    none = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    config = AutoConfig.for_model(kind, vocab_size=17, **sizes, **none, **SPECIAL.get(kind, {}))
    model = AutoModelForCausalLM.from_config(config)
    settings = TrainingArguments(output_dir=str(folder), report_to="none", use_cpu=True)
    found = Trainer(model, settings, eval_dataset=rows).evaluate()["eval_loss"]
    tokens = torch.stack([torch.as_tensor(rows[index]["input_ids"]) for index in range(len(rows))])
    with torch.no_grad():
        logits = model.eval()(tokens).logits[:, :-1].double()
    return found, torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:]).item()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_loss_of_an_evaluation_is_exact_in_every_architecture(kind, tmp_path):
    found, exact = losses(kind, HMMSequences(HMM, LENGTH, num_sequences=16), tmp_path)
    assert found == pytest.approx(exact, rel=1e-6)


ROWS = {
    "HMMSequences without a beginning token": lambda folders: HMMSequences(HMM, LENGTH, num_sequences=16, bos=False),
    "prepared table": lambda folders: stream(folders, num_sequences=16),
    "token_shards table": lambda folders: stream(folders, "token_shards").select(range(16)),
    "TokenWindows": lambda folders: torch.utils.data.Subset(windows(folders), range(16)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("data", ROWS)
def test_gpt2_divides_the_loss_by_the_tokens_that_it_predicts(data, folders, tmp_path):
    # It divides by all labels but -100, the first one included, which it does not predict.
    found, exact = losses("gpt2", ROWS[data](folders), tmp_path)
    assert found == pytest.approx(exact, rel=1e-6)


# Trains by a plain Trainer on two processes, and writes down what each was given.
PROGRAM = """
import json, os, sys
import numpy as np, torch
from datasets import load_dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from hmm_datasets import HMM, HMMSequences

folder, rank = sys.argv[1], os.environ["RANK"]
hmm = HMM.from_pretrained(folder + "/hmm")
stream = load_dataset("hmm", data_dir=folder + "/hmm", length=32, split="train", streaming=True)
data = {"view": HMMSequences(hmm, 32), "stream": stream, "torch": stream.with_format("torch")}
for name, rows in data.items():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model, seen = LlamaForCausalLM(LlamaConfig(vocab_size=17, **sizes)), []
    model.register_forward_pre_hook(lambda _, __, inputs: seen.append(inputs["input_ids"].tolist()), with_kwargs=True)
    settings = TrainingArguments(output_dir=folder + "/run", max_steps=4, report_to="none", use_cpu=True)
    trainer = Trainer(model, settings, train_dataset=rows)
    assert trainer.args.world_size == 2
    trainer.train()
    with open(f"{folder}/{name}-{rank}.json", "w") as file:
        json.dump(seen, file)
"""


@pytest.mark.outside(
    "https://github.com/huggingface/accelerate/issues/2741",
    "two processes on CPUs, to debug without GPUs: `--num_processes 2 --cpu` starts one",
    "`--launch cpu2` starts two, and each reads its half",
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/11254",
    "an iterable data set in distributed training without the same data on all processes",
    "each rank reads its own rows",
)
@pytest.mark.slow
@pytest.mark.thorough
def test_a_plain_trainer_gives_each_of_two_processes_its_own_half_of_every_step(folders, launch, tmp_path):
    HMM.save_pretrained(tmp_path / "hmm")
    (tmp_path / "program.py").write_text(PROGRAM)
    result = launch("torch.distributed.run", "--standalone", "--nproc_per_node=2", tmp_path / "program.py", tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    expected = HMM.sample(4 * 2 * BATCH, LENGTH).tolist()
    for name in ("view", "stream", "torch"):
        first, second = (json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(2))
        assert [row[1:] for step in zip(first, second, strict=True) for batch in step for row in batch] == expected


@pytest.mark.thorough
@pytest.mark.parametrize("streaming", [False, True])
def test_trls_trainer_for_conversations_takes_the_rows_as_they_stand(streaming, tmp_path):
    settings = {"length": LENGTH, "split": "train", "cache_dir": str(tmp_path)}
    settings |= {"streaming": True} if streaming else {"num_sequences": STEPS * BATCH}
    rows = load_dataset("hmm", "mess3", **settings)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4, **sizes))
    arguments = SFTConfig(
        str(tmp_path / "run"),
        **{"max_steps": 2, "per_device_train_batch_size": BATCH, "report_to": [], "bf16": False, "use_cpu": True},
    )
    tokenizer = HMMSequences(processes.mess3(), LENGTH).tokenizer
    trainer = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
    seen = next(iter(trainer.get_train_dataloader()))
    expected = HMMSequences(processes.mess3(), LENGTH, num_sequences=STEPS * BATCH)
    drawn = {tuple(row["input_ids"].tolist()) for row in expected.__getitems__(range(STEPS * BATCH))}
    assert {tuple(row) for row in seen["input_ids"].tolist()} <= drawn
    assert seen["labels"][:, 1:].equal(seen["input_ids"][:, 1:])
    assert trainer.train().global_step == 2

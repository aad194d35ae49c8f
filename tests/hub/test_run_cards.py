"""The card of a run has its metrics and all its training data; cards written by users are not changed."""

import importlib.util
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_json
from hmm_datasets.hmm import processes
from hmm_datasets.hub.kinds.process import write_hmm_card
from hmm_datasets.hub.kinds.push import PushSettings, push_path
from hmm_datasets.hub.licences import with_licence
from hmm_datasets.hub.weights_digest import weights_sha256
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.stream import tokenize_corpus
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.lineage import base_model, lineage
from hmm_datasets.training.model_configs import ModelSettings, new_model
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.run_card import _held_out, write_run_card
from hmm_datasets.training.settings import PretrainSettings, SFTSettings
from hmm_datasets.training.sources import DataSettings, MixtureSettings
from hmm_datasets.training.trainer import Pretrainer

SMALL = {"global_batch_size": 4, "per_device_train_batch_size": 4, "report_to": "none", "save_strategy": "no"}
STEPS = {"pretrain_text": 3, "midtrain": 2, "sft": 2}


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """Pretraining, midtraining and fine-tuning, each in a folder of its own; no evaluation beside them."""
    root = tmp_path_factory.mktemp("stages")
    documents = load_corpus("tinystories-sample", split="train", streaming=False)["text"][:50]
    tokenizer = train_bpe(documents, 400)
    tokenizer.save_pretrained(root / "tokenizer")
    for name, texts in (("stories", documents), ("talk", documents[::-1])):
        for split in ("train", "test"):
            tokenize_corpus(texts, tokenizer, root / name / split, name)

    def train(name, data, model, base=None):
        args = PretrainSettings(str(root / name), max_steps=STEPS[name], **SMALL)
        plan = args.plan(data, model)
        torch.manual_seed(0)
        trainer = Pretrainer(
            model=model,
            args=args,
            plan=plan,
            eval_dataset=data.test_rows,
            processing_class=data.tokenizer,
            data_collator=torch.utils.data.default_collate,
        )
        train_and_save(trainer, settings={}, data=data.identity, base=base)

    chosen = DataSettings(tokens=str(root / "stories"), tokenizer=str(root / "tokenizer"), length=32)
    data = chosen.load()
    train("pretrain_text", data, new_model(ModelSettings(model="d1").config(data)))
    mixture = MixtureSettings(
        str(root / "pretrain_text"), [str(root / "stories"), str(root / "talk")], [0.5, 0.5], length=32
    )
    train(
        "midtrain",
        mixture.load(),
        AutoModelForCausalLM.from_pretrained(root / "pretrain_text"),
        str(root / "pretrain_text"),
    )

    talk = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello there."}]
    rows = Dataset.from_list([{"messages": talk}] * 16)
    trainer = FineTuner(
        model=AutoModelForCausalLM.from_pretrained(root / "midtrain"),
        args=SFTSettings(str(root / "sft"), max_steps=STEPS["sft"], max_length=32, **SMALL),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=data.tokenizer,
    )
    train_and_save(trainer, settings={"conversations": "small-talk"}, data={}, base=str(root / "midtrain"))
    return root


def card(folder):
    return ModelCard.load(folder / "README.md")


def tokens(root, name):
    return read_json(root / name / "summary.json")["tokens"]


@pytest.mark.thorough
def test_a_card_lists_the_tokens_of_every_stage_and_their_sum(stages):
    counts = [tokens(stages, name) for name in STEPS]
    text = card(stages / "sft").text
    assert f"| Tokens trained on | {sum(counts):,} |" in text
    assert f"| pretraining | stories | {counts[0]:,} |" in text
    assert f"| midtraining | stories and talk | {counts[1]:,} |" in text
    assert f"| fine-tuning | small-talk | {counts[2]:,} |" in text
    assert f"| Tokens trained on | {counts[0]:,} |" in card(stages / "pretrain_text").text


@pytest.mark.thorough
def test_a_card_states_only_what_was_measured_on_its_model(stages, tmp_path):
    shutil.copytree(stages, tmp_path / "root")
    root = tmp_path / "root"
    held_out = read_json(root / "sft" / "summary.json")["evaluation"]["loss"]
    assert f"| Held-out loss | {held_out:.5g} |" in card(root / "sft").text
    found = {"bits_per_byte": 1.25, "standard_error": 0.01}
    sha256 = weights_sha256(AutoModelForCausalLM.from_pretrained(root / "midtrain"))
    write_json(root / "evaluation" / "report.json", {"model": {"name": "midtrain", "sha256": sha256}, "text": found})
    for name in STEPS:
        write_run_card(root / name, evaluations=[root / "evaluation"])
    assert ["bits/byte" in card(root / name).text for name in STEPS] == [False, True, False]
    assert "| Held-out text | 1.25 | 0.01 | bits/byte |" in card(root / "midtrain").text


@pytest.mark.thorough
def test_a_report_of_a_text_only_experiment_says_what_is_there(stages, tmp_path, capsys):
    shutil.copytree(stages, tmp_path / "root")
    (tmp_path / "root" / "sft" / "README.md").write_text("# By hand\n")
    path = Path(__file__).parents[2] / "recipes" / "demo" / "report.py"
    spec = importlib.util.spec_from_file_location("report", path)
    spec.loader.exec_module(report := importlib.util.module_from_spec(spec))
    report.main(report.ReportSettings(str(tmp_path / "root")))
    assert card(tmp_path / "root" / "midtrain").data.license is None, "nobody named one"
    report.main(report.ReportSettings(str(tmp_path / "root"), license="cc0-1.0"))
    assert set(read_json(tmp_path / "root" / "report.json")["runs"]) == set(STEPS)
    assert (tmp_path / "root" / "text_loss.png").exists()
    said = capsys.readouterr().out
    assert all(name in said for name in STEPS)
    assert card(tmp_path / "root" / "midtrain").data.license == "cc0-1.0"
    assert (tmp_path / "root" / "sft" / "README.md").read_text() == "# By hand\n"


def test_tokens_of_a_base_without_a_record_are_unknown(stages, tmp_path):
    shutil.copytree(stages / "pretrain_text", tmp_path / "base")
    (tmp_path / "base" / "run.json").unlink()
    found = asdict(lineage(base_model(str(tmp_path / "base")), stage="fine-tuning", data="talk"))
    assert found["before"] == [{"stage": "training of base", "data": None, "tokens": None}]
    shutil.copytree(stages / "sft", tmp_path / "sft")
    record = read_json(tmp_path / "sft" / "run.json")
    write_json(tmp_path / "sft" / "run.json", record | {"lineage": found})
    write_run_card(tmp_path / "sft")
    count = tokens(stages, "sft")
    assert f"| Tokens trained on | {count:,}, and an unknown number in earlier stages |" in card(tmp_path / "sft").text
    assert "| training of base | not known | not known |" in card(tmp_path / "sft").text


LICENCES = {
    "one of the Hub": ("license: Apache-2.0", {"license": "apache-2.0"}, "Apache-2.0"),
    "another, with its name and address": (
        "license: other\nlicense_name: bird-research\nlicense_link: https://bird.example/LICENSE",
        {"license": "other", "license_name": "bird-research", "license_link": "https://bird.example/LICENSE"},
        "other, bird-research, https://bird.example/LICENSE",
    ),
    "in words": ("license: Apache License 2.0", {}, "Apache License 2.0"),
    "none": ("language: en", {}, "not stated in its files"),
    "broken": ("license: [", {}, "not stated in its files"),
}


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/WestWaters/pollard-weights/pull/66",
    "the card of a model made from another states the licence of that one, and never a guess",
    "the licence is read from the GGUF file or the card of the parent; without one the card states that",
)
@pytest.mark.parametrize("stated", LICENCES)
def test_the_licence_of_a_card_is_that_of_the_parent(stated, stages, tmp_path):
    front, of_card, in_table = LICENCES[stated]
    shutil.copytree(stages / "sft", tmp_path / "sft")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "README.md").write_text(f"---\n{front}\n---\n# A model\n")
    found = asdict(lineage(base_model(str(tmp_path / "base")), stage="fine-tuning", data="talk"))
    record = read_json(tmp_path / "sft" / "run.json")
    write_json(tmp_path / "sft" / "run.json", record | {"lineage": found})
    write_run_card(tmp_path / "sft")
    data = card(tmp_path / "sft").data.to_dict()
    assert {name: value for name, value in data.items() if name.startswith("license")} == of_card
    assert f"| Licence of the parent | {in_table} |" in card(tmp_path / "sft").text
    assert base_model(str(tmp_path / "sft")).licence == of_card, "and so of what is trained from it"
    write_run_card(tmp_path / "sft", licence="mit")
    assert card(tmp_path / "sft").data.license == "mit"


def test_a_licence_that_is_given_to_push_stands_in_the_card_or_is_refused(stages, tmp_path):
    shutil.copytree(stages / "sft", tmp_path / "sft")
    text = (tmp_path / "sft" / "README.md").read_text()
    changed = ModelCard(with_licence(text, {"license": "cc0-1.0"}))
    assert (changed.data.license, changed.text) == ("cc0-1.0", ModelCard(text).text)
    settings = PushSettings(license="cc0-1.0", dry_run=True)
    push_path(tmp_path / "sft", "me/x", settings, say=lambda line: None)
    (tmp_path / "sft" / "README.md").write_text("# By hand\n")
    with pytest.raises(InputError, match=r"license is cc0-1.0, but .*README.md was written or edited by hand; state"):
        push_path(tmp_path / "sft", "me/x", settings, say=lambda line: None)


def test_a_stage_that_begins_at_a_checkpoint_counts_the_tokens_up_to_it(stages, tmp_path):
    shutil.copytree(stages / "midtrain", tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint-1"
    write_json(checkpoint / "trainer_state.json", {"global_step": 1, "num_input_tokens_seen": 77})
    found = lineage(base_model(str(checkpoint)), stage="fine-tuning", data="talk").before
    assert [stage.tokens for stage in found] == [tokens(stages, "pretrain_text"), 77]


def test_a_card_has_no_path_of_this_machine(stages):
    for name in STEPS:
        assert str(stages) not in (stages / name / "README.md").read_text()


def test_a_card_that_somebody_wrote_is_left_alone(stages, tmp_path):
    shutil.copytree(stages / "pretrain_text", tmp_path / "run")
    path = tmp_path / "run" / "README.md"
    first = path.read_text()
    write_run_card(tmp_path / "run", name="Another name")
    assert "# Another name" in path.read_text(), "our own is written anew"
    path.write_text(first.replace("## Data", "## My data"))
    write_run_card(tmp_path / "run")
    assert "## My data" in path.read_text(), "edited"
    path.write_text("# By hand\n")
    write_run_card(tmp_path / "run")
    assert path.read_text() == "# By hand\n"


def test_a_fit_has_its_card_beside_the_hmm(tmp_path):
    hmm = processes.mess3(0.15, 0.6)
    hmm.save_pretrained(tmp_path / "hmm")
    summary = {"train_log_likelihood": -1.0, "test_log_likelihood": -1.5, "entropy_rate": 1.0}
    write_json(tmp_path / "summary.json", summary | {"entropy_rate_error": 0.001})
    record = {"settings": {"corpus": "tinystories-sample"}, "command": "python fit_hmm.py", "versions": {"torch": "2"}}
    write_json(tmp_path / "run.json", record)
    write_hmm_card(tmp_path)
    text = card(tmp_path / "hmm").text
    assert "| Fitted on | tinystories-sample |" in text
    assert "-1.50000 nats/token" in text
    assert json.loads((tmp_path / "hmm" / "config.json").read_text()), "the HMM is as it was"


def test_results_on_preferences_and_rewards_have_their_own_names_and_units():
    def rows(**evaluation):
        metrics, optimal_loss = _held_out(evaluation)
        assert optimal_loss is None
        return [(one["name"], one["value"], one["unit"]) for one in metrics]

    pairs = {"loss": 0.6, "rewards/accuracies": 0.7, "rewards/margins": 0.1, "mean_token_accuracy": 0.8}
    assert rows(**pairs) == [
        ("Held-out loss", 0.6, "nats/pair"), ("Held-out pairs ranked as labelled", 0.7, "share")
    ]  # fmt: skip
    rewarded = {"loss": 0.0, "reward": 1.25, "rewards/gsm8k/mean": 0.25, "rewards/gsm8k/std": 0.4}
    assert rows(**rewarded) == [("Held-out reward", 1.25, "reward")]
    assert rows(**rewarded, **{"rewards/format/mean": 1.0}) == [
        ("Held-out reward", 1.25, "reward"), ("Held-out reward, format", 1.0, "reward"),
        ("Held-out reward, gsm8k", 0.25, "reward"),
    ]  # fmt: skip

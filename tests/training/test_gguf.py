"""A model in a GGUF file is loaded, measured, converted and fine-tuned like the folder of the same model."""

import json
import shutil

import pytest
import torch
from tiny_runs import CONVERSATIONS, conversations
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.evaluation import evaluate_model
from hmm_datasets.evaluation.settings import EvaluationSettings
from hmm_datasets.files import file_digest, read_json
from hmm_datasets.hub.download import ModelName
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.chat_templates import load_tokenizer
from hmm_datasets.training.lineage import licence_of
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.pretrained import load_pretrained, tokenizer_of
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import SFTSettings

pytest.importorskip("gguf")
from tiny_gguf import save_gguf

TEXT = "Who are  12 of them?\n\n  It is 345."


@pytest.fixture(scope="module")
def tokenizer():
    """One that cuts text at every digit."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    texts = [message["content"] for row in conversations() for message in row["messages"]]
    found = train_bpe([*texts, TEXT], 400, min_frequency=1, show_progress=False)
    found.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    return found


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def file(model, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    save_gguf(model, tokenizer, path)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("by_folder", [False, True])
def test_model_and_tokenizer_are_those_that_were_written(by_folder, file, model, tokenizer):
    name = str(file.parent if by_folder else file)
    loaded, found = load_pretrained(AutoModelForCausalLM, name), tokenizer_of(name)
    tokens = torch.tensor([tokenizer.encode(TEXT)])
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert found.encode(TEXT) == load_tokenizer(name).encode(TEXT) == tokens[0].tolist()
    assert found.decode(tokens[0]) == TEXT
    assert found.chat_template == tokenizer.chat_template
    assert (found.bos_token_id, found.eos_token_id) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_new_model_takes_the_configuration_of_the_file(file):
    config = model_config(str(file), vocab_size=10, max_length=128)
    assert (config.hidden_size, config.num_key_value_heads, config.vocab_size) == (64, 2, 10)
    assert config.max_position_embeddings == 128


def test_what_lies_beside_the_file_is_not_read(file, tmp_path, tokenizer):
    shutil.copy(file, tmp_path / "tiny.gguf")
    other = train_bpe([TEXT] * 9, 270, show_progress=False)
    other.save_pretrained(tmp_path)
    assert tokenizer_of(str(tmp_path / "tiny.gguf")).encode(TEXT) == tokenizer.encode(TEXT)


@pytest.mark.thorough
def test_an_evaluation_of_the_file_is_that_of_the_folder(file, tmp_path):
    folder = tmp_path / "folder"
    for kind in (AutoModelForCausalLM, AutoTokenizer):
        load_pretrained(kind, str(file)).save_pretrained(folder)
    (tmp_path / "held.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    given = {"targets": [str(tmp_path / "held.jsonl")], "test_fraction": 1.0, "tasks": ["text"], "window": 16}
    found = [
        evaluate_model(EvaluationSettings(model=str(name), output_dir=str(tmp_path / "out"), **given))["text"]
        for name in (file, folder)
    ]
    assert found[0] == found[1]
    assert found[0]["num_tokens"] > 10


@pytest.mark.thorough
@pytest.mark.parametrize("use_peft", [False, True])
def test_a_run_that_begins_with_it_is_saved_and_names_it(use_peft, file, model, tmp_path):
    if use_peft:
        pytest.importorskip("peft")
    given = {"use_peft": use_peft, "merge_adapter": use_peft, "learning_rate": 1e-2, "report_to": "none"}
    given |= {"max_steps": 2, "global_batch_size": 2, "per_device_train_batch_size": 2, "max_length": 48}
    trainer = FineTuner(
        model=load_pretrained(AutoModelForCausalLM, str(file)),
        args=SFTSettings(str(tmp_path), **given),
        train_dataset=conversations(),
        processing_class=load_pretrained(AutoTokenizer, str(file)),
    )
    train_and_save(trainer, settings={"model": str(file)}, data={"count": CONVERSATIONS}, base=str(file))
    tokens = torch.tensor([[1, 2, 3]])
    tuned = load_pretrained(AutoModelForCausalLM, str(tmp_path))(tokens).logits
    assert not torch.allclose(tuned, model(tokens).logits)
    assert load_pretrained(AutoConfig, str(tmp_path)).hidden_size == 64
    if use_peft:
        merged = load_pretrained(AutoModelForCausalLM, str(tmp_path / "merged"))(tokens).logits
        torch.testing.assert_close(tuned, merged)
        assert licence_of(str(tmp_path / "merged")) == {"license": "mit"}
    digest = file_digest(file)
    base = read_json(tmp_path / "run.json")["lineage"]["base"]
    assert base == {
        "model": str(file),
        "commit": None,
        "weights": {"tiny.gguf": digest},
        "quantization": "F32",
        "licence": {"license": "mit"},
    }
    card = (tmp_path / "README.md").read_text()
    assert f"SHA-256 of its tiny.gguf | `{digest}`" in card.replace("**", "")
    assert "F32, read into float32" in card
    assert "\nlicense: mit\n" in card
    use = card.split("```python\n")[1].partition("\n```")[0].replace("USER/NAME", str(tmp_path))
    exec(use, used := {})
    torch.testing.assert_close(used["model"](tokens).logits, tuned)


def test_a_name_means_a_file_a_folder_or_a_repository(file, tmp_path):
    here = ModelName(str(file.parent), gguf_file="tiny.gguf")
    assert ModelName.parse(file) == ModelName.parse(f"{file.parent}/tiny.gguf") == here
    assert ModelName.parse(file.parent).gguf_file == "tiny.gguf"
    assert ModelName.parse("a/b@main") == ModelName("a/b", "main", on_hub=True)
    assert ModelName.parse("a/b:c/d.gguf") == ModelName("a/b", None, "c/d.gguf", on_hub=True)
    for name in ("a/b", "a/b@v1", "a/b:c.gguf", "a/b:c.gguf@v1", f"{file}"):
        assert str(ModelName.parse(name)) == name
    (tmp_path / "config.json").touch()
    shutil.copy(file, tmp_path)
    assert ModelName.parse(tmp_path).gguf_file is None


@pytest.mark.parametrize("fault", ["missing", "two", "truncated", "cut off", "other", "parts"])
def test_a_fault_is_one_line_that_says_how_to_mend_it(fault, file, tmp_path):
    path = tmp_path / "x.gguf"
    content = file.read_bytes()
    name, expected = str(path), ""
    if fault == "missing":
        expected = f"{path}: no such file; expected a model in GGUF format"
    elif fault == "two":
        for one in ("b.gguf", "a.gguf"):
            (tmp_path / one).touch()
        name = str(tmp_path)
        expected = f"{tmp_path}: has no config.json and 2 GGUF files, .*name one of them, such as {tmp_path}/a.gguf"
    elif fault == "truncated":
        path.write_bytes(content[:-100])
        expected = f"{path}: not a whole GGUF file .expected at least .* found {len(content) - 100:,}.; copy it again"
    elif fault == "cut off":
        path.write_bytes(content[:900])
        expected = f"{path}: not a whole GGUF file .* copy it again"
    elif fault == "other":
        path.write_bytes(b"{}" * 99)
        expected = f"{path}: not a whole GGUF file .GGUF magic invalid.; copy it again"
    else:
        import gguf

        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.count", 3)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        expected = f"{path}: expected a whole model, found one of 3 parts; join them"
    for auto_class in (AutoConfig, AutoTokenizer, AutoModelForCausalLM):
        with pytest.raises(InputError, match=expected) as caught:
            load_pretrained(auto_class, name)
        assert "\n" not in str(caught.value)

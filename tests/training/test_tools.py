"""Tools of GRPO: what the calculator returns is read, is not trained on, and counts for nothing in the reward."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from needed_versions import needs
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.calculator import calculator, with_calls
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.named_templates import set_chat_template
from hmm_datasets.training.post_training.rewards import reward
from hmm_datasets.training.post_training.tools import prepare_for_tools, tool
from hmm_datasets.training.post_training.trainers import PolicyTuner
from hmm_datasets.training.settings import GRPOSettings

ASKED = {"role": "user", "content": "Half of 48, and 24 more?"}
ANSWER = "48/2=<<48/2=24>>24, and 24+24=<<24+24=48>>48. #### 48"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>'


def tokenizer_with(template: str):
    tokenizer = train_bpe([ASKED["content"] + ANSWER + CALL] * 4, 300, show_progress=False)
    set_chat_template(tokenizer, template)
    return tokenizer


@needs("transformers>=5.13")
@pytest.mark.parametrize("template", ["default", "chatml", "qwen2.5", "qwen3"])
def test_calls_are_found_in_what_a_model_says(template):
    tokenizer = tokenizer_with(template)
    prepare_for_tools(tokenizer, [calculator])
    prompt = tokenizer.apply_chat_template([ASKED], tools=[calculator], add_generation_prompt=True, return_dict=False)
    end = "<|end|>" if template == "default" else "<|im_end|>"
    found = tokenizer.parse_response(tokenizer.encode(f"48/2=\n{CALL}{end}"), prefix=prompt)
    assert [call["function"] for call in found["tool_calls"]] == [
        {"name": "calculator", "arguments": {"expression": "48/2"}}
    ]
    plain = tokenizer.parse_response(tokenizer.encode(f"It is 48.{end}"), prefix=prompt)
    assert (plain["content"], plain.get("tool_calls")) == ("It is 48.", None)


@needs("transformers>=5.13")
@pytest.mark.parametrize("template", ["default", "chatml"])
def test_rollouts_have_the_tokens_of_the_conversations_fine_tuned_on(template, tmp_path):
    """Declaration, call, result and answer, token by token, with the mask on what the model itself says."""
    tokenizer = tokenizer_with(template)
    spoken = with_calls([ASKED, {"role": "assistant", "content": ANSWER}])
    expected = tokenizer.apply_chat_template(spoken, return_assistant_tokens_mask=True, return_dict=True)
    end = "<|end|>" if template == "default" else "<|im_end|>"
    turns = [message["content"] + end for message in spoken if message["role"] == "assistant"]
    trainer, batch = rollouts(tokenizer, turns, tmp_path)
    read = batch["prompt_ids"].shape[1] + sum(map(len, encoded(tokenizer, turns)))
    assert trainer.state.num_input_tokens_seen == 2 * read
    for row in range(2):
        kept = batch["completion_mask"][row].bool()
        tokens = [*batch["prompt_ids"][row].tolist(), *batch["completion_ids"][row][kept].tolist()]
        assert tokens == expected["input_ids"][: len(tokens)]
        assert len(expected["input_ids"]) - len(tokens) <= (template != "default")  # a line break after the last turn
        said = [0] * batch["prompt_ids"].shape[1] + batch["tool_mask"][row][kept].tolist()
        assert said == expected["assistant_masks"][: len(said)]
    assert trainer.rewarded == [1.0, 1.0]


@needs("trl>=1.15")
@needs("transformers>=5.13")
def test_what_a_tool_returns_has_no_gradient(tmp_path):
    """The same rollout with another result in the same number of tokens: the loss reads it, but is not on it."""
    tokenizer = tokenizer_with("default")
    spoken = with_calls([ASKED, {"role": "assistant", "content": ANSWER}])
    turns = [message["content"] + "<|end|>" for message in spoken if message["role"] == "assistant"]
    trainer, batch = rollouts(tokenizer, turns, tmp_path)
    batch["advantages"] = torch.tensor([1.0, -0.5])
    trainer.current_gradient_accumulation_steps = 1  # which the training loop sets
    kept = []

    def keep(module, inputs, output):
        output.log_probs.retain_grad()
        kept.append(output.log_probs)

    with trainer.model.register_forward_hook(keep):
        trainer.compute_loss(trainer.model, batch).backward()
    gradients = kept[0].grad[:, -batch["completion_ids"].shape[1] :]
    told = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert (gradients[told] != 0).all()
    assert (gradients[~told] == 0).all()
    assert (~told).any()


def rollouts(tokenizer, turns, folder):
    """The batch of two rollouts in which the model says these turns, whatever it would say."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.encode(turns[0])[-1]]
    settings = GRPOSettings(
        str(folder),
        max_steps=1,
        global_batch_size=2,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=512,
        report_to="none",
    )
    rows = Dataset.from_list([{"prompt": [ASKED], "answer": ANSWER}])
    trainer = Scripted(
        model=model,
        reward_funcs=[reward("gsm8k")],
        args=settings,
        train_dataset=rows,
        processing_class=tokenizer,
        tools=[tool("calculator")],
    )
    trainer.script = encoded(tokenizer, turns)
    trainer.model.train()
    batch = trainer._generate_and_score_completions([dict(rows[0]) for _ in range(2)])
    return trainer, batch


def encoded(tokenizer, turns):
    return [tokenizer.encode(turn, add_special_tokens=False) for turn in turns]


class Scripted(PolicyTuner):
    """Says the next turn of a script at each generation."""

    def _generate_single_turn(self, prompt_ids, *_, **__):
        turn = self.script.pop(0)
        return [list(turn) for _ in prompt_ids], None

    def _calculate_rewards(self, *args, **kwargs):
        found = super()._calculate_rewards(*args, **kwargs)
        self.rewarded = found[:, 0].tolist()
        return found


@needs("transformers>=5.13")
def test_a_template_that_cannot_write_calls_is_refused():
    with pytest.raises(InputError, match="chat template of the tokenizer does not write calls of tools; fine-tune"):
        prepare_for_tools(tokenizer_with("llama3"), [calculator])


def undescribed(number: int) -> int:
    return number


def test_transformers_that_finds_no_calls_is_refused():
    """Version 5.12 takes calls by a schema that TRL has for some models alone."""
    old = SimpleNamespace(parse_response=lambda response, schema=None: None)
    with pytest.raises(InputError, match=r"tools: calls are found by transformers 5\.13 or newer"):
        prepare_for_tools(old, [calculator])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("abacus", "expected calculator or MODULE:FUNCTION"),
        ("json:nothing", "cannot be imported"),
        ("test_tools:undescribed", "no declaration can be made of it"),
    ],
)
def test_a_tool_that_cannot_be_had_is_named(name, told):
    with pytest.raises(InputError, match=f"tools: {name}: .*{told}"):
        tool(name)

"""Measures of an evaluation are means over tokens or pairs, for any batch size, number of ranks and trainer."""

import json
from pathlib import Path

import held_out_runs
import pytest
import torch
from held_out_runs import ROWS, measures, trainers
from tiny_trainers import rows_of
from transformers import AutoModelForCausalLM

from hmm_datasets.training.post_training.trainers import PolicyTuner
from hmm_datasets.training.settings import GRPOSettings


@pytest.fixture(scope="module")
def single(base, tmp_path_factory):
    """The measures in batches of one row."""
    return {name: measures(trainer) for name, trainer in trainers(tmp_path_factory.mktemp("single"), base, 1)}


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/39241",
    "the same `eval_loss` whatever the batch size",
    "a mean over tokens, also with `compute_metrics`",
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/16716",
    "the right `eval_loss` where the rows do not fill the last batch",
    "a mean over tokens, to which rows that ranks repeat do not count",
)
@pytest.mark.outside(
    "https://github.com/OpenRLHF/OpenRLHF/pull/1336",
    "loss and accuracy of preference pairs as means over pairs instead of batches",
    "means over pairs, for any batch size and number of ranks",
)
@pytest.mark.parametrize("batch", [2, 3, 7, 8])
def test_measures_do_not_depend_on_the_batch_size(batch, base, single, tmp_path):
    for name, trainer in trainers(tmp_path, base, batch):
        assert measures(trainer) == pytest.approx(single[name], rel=1e-4, abs=1e-5)


@pytest.mark.thorough
def test_measures_do_not_depend_on_the_number_of_ranks(base, single, launch, tmp_path):
    program = Path(held_out_runs.__file__)
    command = ["--config_file", "accelerate_configs/cpu2.yaml", program, tmp_path, base]
    result = launch("accelerate.commands.launch", *command)
    assert result.returncode == 0, result.stderr
    for rank in (0, 1):
        found = json.loads((tmp_path / f"measures-{rank}.json").read_text())
        assert len(found) == 9
        for name, values in found.items():
            assert values == pytest.approx(single[name.split()[0]], rel=1e-4, abs=1e-5), name


@pytest.mark.thorough
def test_the_loss_beside_the_optimum_is_the_mean_over_tokens(tmp_path, single):
    ((_, trainer),) = trainers(tmp_path, None, 2, names=["pretrain"])
    total = count = 0
    for row in (trainer.eval_dataset[index] for index in range(ROWS)):
        with torch.no_grad():
            logits = trainer.model(input_ids=row["input_ids"][None]).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, row["labels"][1:], reduction="sum").item()
        count += (row["labels"][1:] != -100).sum().item()
    assert single["pretrain"]["eval_loss"] == pytest.approx(total / count, abs=1e-6)
    assert "eval_cross_entropy" in single["pretrain"]


def log_probability(model, tokens, count):
    """The log-probability of the last tokens, in nats."""
    with torch.no_grad():
        logs = model(tokens).logits.log_softmax(-1)[0, :-1]
    return logs.gather(1, tokens[0, 1:, None])[-count:].sum().item()


@pytest.mark.thorough
def test_the_measures_of_preferences_are_those_of_the_paper_averaged_over_pairs(base, single, tmp_path):
    """Rewards are beta times the log-ratios (Rafailov et al., "Direct preference optimization", 2023, section 4)."""
    ((_, trainer),) = trainers(tmp_path, base, 3, names=["dpo"])
    reference = AutoModelForCausalLM.from_pretrained(base).eval()
    margins, losses, chosen = [], [], []
    for row in trainer.eval_dataset:
        rewards = []
        for part in ("chosen_ids", "rejected_ids"):
            tokens = torch.tensor([row["prompt_ids"] + row[part]])
            logps = [log_probability(model, tokens, len(row[part])) for model in (trainer.model.eval(), reference)]
            rewards.append(trainer.beta * (logps[0] - logps[1]))
        margins.append(rewards[0] - rewards[1])
        chosen.append(rewards[0])
        losses.append(-torch.nn.functional.logsigmoid(torch.tensor(margins[-1])).item())
    found = single["dpo"]
    assert found["eval_rewards/margins"] == pytest.approx(sum(margins) / ROWS, abs=1e-4)
    assert found["eval_rewards/chosen"] == pytest.approx(sum(chosen) / ROWS, abs=1e-4)
    assert found["eval_loss"] == pytest.approx(sum(losses) / ROWS, abs=1e-5)
    assert found["eval_rewards/accuracies"] == pytest.approx(sum(margin > 0 for margin in margins) / ROWS)


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [2, 3])
def test_held_out_rewards_are_means_over_prompts(batch, base, tokenizer, tmp_path):
    rows = rows_of("grpo").select([0, 20, 40, 60, 80, 85, 70])  # answers of different lengths
    settings = {"num_generations": 4, "max_completion_length": 4, "max_steps": 1, "global_batch_size": 8}
    trainer = PolicyTuner(
        model=AutoModelForCausalLM.from_pretrained(base),
        reward_funcs=[lambda completions, answer, **_: [float(len(one)) for one in answer]],
        args=GRPOSettings(str(tmp_path), per_device_eval_batch_size=batch, report_to="none", **settings),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer,
    )
    trainer.evaluate()
    expected = sum(map(len, rows["answer"])) / ROWS
    assert trainer.state.log_history[-1]["eval_reward"] == pytest.approx(expected)

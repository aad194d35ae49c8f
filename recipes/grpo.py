# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets[peft]"]
# ///

"""Train a model on rewards of its own answers, by GRPO.

TRL trains it on rewards that are computed: answers to prompts are scored and reinforced.

    hmm-datasets grpo --launch cpu2 --model outputs/demo/sft --prompts story-questions --rewards exact \
        --max_completion_length 16 --output_dir outputs/grpo

Prompts are the first turns of conversations, and what the assistant said to them is the column `answer`, which rewards
such as `gsm8k` and `exact` compare completions with; or prompts alone, as the column `prompt`. Rewards are given the
other columns too. `hmm_datasets/training/post_training/rewards.py` lists the
rewards. Completions with their rewards are written to `completions/`, one Parquet file for each log step.
"""

from dataclasses import MISSING, asdict, dataclass

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import Void
from hmm_datasets.runtime.settings import setting
from hmm_datasets.training.fields import GRPOFields


@dataclass
class PromptSettings:
    """The model to train, the prompts, and the rewards."""

    model: str = setting(MISSING, "Folder, GGUF file or Hub name of a model whose tokenizer has a chat template.")
    prompts: str = setting(MISSING, "A corpus of conversations or of prompts: name, file or Hub data set.")
    rewards: list[str] = setting(MISSING, "Rewards to add up: gsm8k, exact, format:REGEX, length:N, MODULE:FUNCTION.")
    system: str | None = setting(None, "A system message before every prompt.")
    max_prompts: int | None = setting(None, "Maximum number of prompts to train on.", least=1)
    num_test_sequences: int = setting(256, "Maximum number of held-out prompts.", least=1)
    test_fraction: float | None = setting(
        None, "Share held out by hash; by default a data set's own test split, else 0.1.", below=1
    )

    voids = (Void("num_test_sequences", "if test_fraction is 0"),)


def main(chosen: PromptSettings, settings: GRPOFields) -> None:
    """Load the model, the prompts and the rewards, train, save."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    from hmm_datasets.runtime import environment
    from hmm_datasets.text.corpora.conversations import learnt_turns
    from hmm_datasets.text.tokenizers.chat_templates import stop_tokens
    from hmm_datasets.training.lineage import weights_of
    from hmm_datasets.training.post_training.conversations import never_evaluate, prompt_splits, prompts_of
    from hmm_datasets.training.post_training.rewards import check_columns, reward
    from hmm_datasets.training.post_training.tokenized import fitting_prompts
    from hmm_datasets.training.post_training.trainers import PolicyTuner
    from hmm_datasets.training.pretrained import load_pretrained
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.template_time import fix_template_time

    set_seed(settings.seed)
    fix_template_time(settings.output_dir)
    rewards = [reward(name) for name in chosen.rewards]
    tokenizer = load_pretrained(AutoTokenizer, chosen.model)
    model = load_pretrained(AutoModelForCausalLM, chosen.model)
    model.generation_config.eos_token_id = stop_tokens(tokenizer, model.generation_config)
    train, test = prompt_splits(
        chosen.prompts,
        max_prompts=chosen.max_prompts,
        num_test_sequences=chosen.num_test_sequences,
        test_fraction=chosen.test_fraction,
    )
    if test is None:
        never_evaluate(settings)

    def prompts(rows, name):
        later = sum(len(learnt_turns(row)) > 1 for row in rows)
        if later and environment.rank() == 0:
            print(f"{chosen.prompts}: {later:,} of {len(rows):,} {name} conversations have later turns, not used")
        asked = prompts_of(rows, chosen.system)
        check_columns(dict(zip(chosen.rewards, rewards, strict=True)), asked, f"{chosen.prompts} ({name})")
        return fitting_prompts(asked, tokenizer, model.config, settings.max_completion_length, name=name)

    trainer = PolicyTuner(
        model=model,
        reward_funcs=rewards,
        args=settings,
        train_dataset=prompts(train, "train"),
        eval_dataset=None if test is None else prompts(test, "eval"),
        processing_class=tokenizer,
    )
    data = {"prompts": chosen.prompts, "count": len(train), "seed": settings.seed, "rewards": chosen.rewards}
    data |= {name: asdict(chosen)[name] for name in ("system", "test_fraction") if asdict(chosen)[name]}
    data["reference"] = weights_of(chosen.model)
    train_and_save(trainer, settings=asdict(chosen), base=chosen.model, data=data)


if __name__ == "__main__":
    run(main)

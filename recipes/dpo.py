# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets[peft]"]
# ///

"""Train a model on preferences, by DPO.

TRL trains it: chosen answers become more likely than rejected ones.

    hmm-datasets dpo --launch cpu2 --model outputs/demo/sft --preferences pairs.jsonl --output_dir outputs/dpo \
        --learning_rate 1e-5

Rows of preferences have `prompt`, `chosen` and `rejected`, or one of the other forms that `load_corpus` recognizes.
The reference is the model that training starts from; its log-probabilities are computed once and kept in the run's
folder. Order, resuming and accounting are those of pretraining; the budget is one epoch unless another one is set.
"""

from dataclasses import asdict

from hmm_datasets.runtime.program import run
from hmm_datasets.training.fields import DPOFields
from hmm_datasets.training.sources import PreferenceSettings


def main(chosen: PreferenceSettings, settings: DPOFields) -> None:
    """Load the model and the pairs, train, save."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    from hmm_datasets.text.tokenizers.chat_templates import stop_tokens
    from hmm_datasets.training.lineage import weights_of
    from hmm_datasets.training.post_training.conversations import never_evaluate, preference_splits
    from hmm_datasets.training.post_training.tokenized import limit_rows
    from hmm_datasets.training.post_training.trainers import PreferenceTuner
    from hmm_datasets.training.pretrained import load_pretrained
    from hmm_datasets.training.run import train_and_save

    set_seed(settings.seed)
    tokenizer = load_pretrained(AutoTokenizer, chosen.model)
    model = load_pretrained(AutoModelForCausalLM, chosen.model)
    model.generation_config.eos_token_id = stop_tokens(tokenizer, model.generation_config)
    limit_rows(settings, model.config)
    train, test = preference_splits(chosen)
    if test is None:
        never_evaluate(settings)
    trainer = PreferenceTuner(
        model=model, args=settings, train_dataset=train, eval_dataset=test, processing_class=tokenizer
    )
    data = {"preferences": chosen.preferences, "count": len(train), "seed": settings.seed}
    if chosen.test_fraction is not None:
        data["test_fraction"] = chosen.test_fraction
    data["reference"] = weights_of(chosen.model)
    train_and_save(trainer, settings=asdict(chosen), base=chosen.model, data=data)


if __name__ == "__main__":
    run(main)

"""Fine-tune a model on conversations with TRL, the loss on the assistant's words alone; then let it answer.

    accelerate launch --config_file accelerate_configs/cpu2.yaml recipes/sft.py \
        --config recipes/demo/sft.yaml [--prompt "What is the capital of France?" ...]

With `--num_questions N` the first questions of N held-out conversations are put to the model before and after, and
answers in exactly the right words are counted: `answers.json` and `answers.jsonl`, which `recipes/answers.py` shows.
"""

from dataclasses import asdict, dataclass, field

from hmm_datasets.recipe import run


@dataclass
class ConversationSettings:
    """What to fine-tune, on what."""

    model: str = field(metadata={"help": "Folder or Hub name of the model; its tokenizer has a chat template."})
    conversations: str = field(
        default="instructions-sample", metadata={"help": "A corpus of conversations: name, file or Hub data set."}
    )
    max_conversations: int | None = field(default=None, metadata={"help": "Read no more conversations than this."})
    prompt: str = field(default="What is the capital of France?", metadata={"help": "Answered at the end."})
    max_new_tokens: int = field(default=64, metadata={"help": "Longest answer, in tokens."})
    num_questions: int = field(
        default=0,
        metadata={
            "help": "Held-out questions answered before and after, and counted where exactly right; 0 for none."
        },
    )


def main(chat: ConversationSettings, settings) -> None:
    """Load the model and conversations, fine-tune, save, answer."""
    from pathlib import Path

    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    from hmm_datasets.files import write_json
    from hmm_datasets.text.corpora import load_corpus
    from hmm_datasets.training.models import load_pretrained
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainers import FineTuner

    set_seed(settings.seed)
    tokenizer = load_pretrained(AutoTokenizer, chat.model)
    model = load_pretrained(AutoModelForCausalLM, chat.model)
    # A chat model stops at the end of its message as well as at the end of a document.
    end_of_message = tokenizer.convert_tokens_to_ids("<|end|>")
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, end_of_message]

    def rows(split: str) -> Dataset:
        return load_corpus(chat.conversations, split=split, streaming=False)

    train, test = rows("train"), rows("test")
    if chat.max_conversations is not None:
        train = train.select(range(min(len(train), chat.max_conversations)))
    trainer = FineTuner(model=model, args=settings, train_dataset=train, eval_dataset=test, processing_class=tokenizer)
    summary = train_and_save(
        trainer,
        settings=asdict(chat),
        data={"conversations": chat.conversations, "count": len(train), "seed": settings.seed},
    )
    if "interrupted" not in summary and trainer.is_world_process_zero():
        answer = _answer(settings.output_dir, chat.prompt, chat.max_new_tokens)
        print(f"prompt: {chat.prompt}\nanswer: {answer}")
        write_json(Path(settings.output_dir) / "answer.json", {"prompt": chat.prompt, "answer": answer})
        if chat.num_questions > 0:
            _count_answers(chat, settings.output_dir, test, model.generation_config.eos_token_id)


def _answer(folder: str, prompt: str, max_new_tokens: int) -> str:
    """What the saved model says, by greedy decoding."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def _count_answers(chat: ConversationSettings, folder: str, test, stop: list[int]) -> None:
    """Put held-out questions to the model as it was and as it is saved; write what came, print how much is right."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hmm_datasets.metrics.answers import answer, compare_answers, questions_of
    from hmm_datasets.training.models import load_pretrained

    questions = questions_of(test or [], chat.num_questions)
    if not questions:
        print(f"{chat.conversations}: no held-out question has an answer; none is counted")
        return
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = [
        answer(
            load_pretrained(AutoModelForCausalLM, name),
            tokenizer,
            questions,
            stop=stop,
            max_new_tokens=chat.max_new_tokens,
        )
        for name in (chat.model, folder)
    ]
    found = compare_answers(folder, questions, *said)
    before, after = (found[when]["all"]["accuracy"] for when in ("before", "after"))
    print(f"{len(questions)} held-out questions, answered in the right words: {before:.1%} before, {after:.1%} after")


if __name__ == "__main__":
    run(main, ConversationSettings, "SFTSettings")

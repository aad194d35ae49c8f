# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets[peft]"]
# ///

"""Fine-tune a model on conversations.

TRL trains it, with the loss on the assistant's words only; then it answers.

    hmm-datasets sft --launch cpu2 --config demo/sft.yaml [--prompt "What is the capital of France?" ...]

With `--num_questions N` the model answers the first questions of N held-out conversations before and after
fine-tuning. A table counts those in exactly the right words, and three are shown; `answers.json` has the counts, and
`answers.jsonl` all answers.
"""

from dataclasses import asdict

from hmm_datasets.runtime.program import run
from hmm_datasets.training.fields import SFTFields
from hmm_datasets.training.sources import ConversationSettings

TRANSCRIPTS = 3


def main(chat: ConversationSettings, settings: SFTFields) -> None:
    """Load the model and conversations, fine-tune, save, answer."""
    import gc
    from pathlib import Path

    from transformers import AutoModelForCausalLM, set_seed

    from hmm_datasets.compat.deepspeed import without_zero3_init
    from hmm_datasets.files import write_json
    from hmm_datasets.runtime import heartbeats
    from hmm_datasets.text.tokenizers.chat_templates import end_of_turn, stop_tokens
    from hmm_datasets.training.post_training.conversations import (
        conversation_splits,
        never_evaluate,
        tokenizer_for_chat,
    )
    from hmm_datasets.training.post_training.trainers import FineTuner
    from hmm_datasets.training.pretrained import load_pretrained
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.vocabulary import add_embeddings

    set_seed(settings.seed)
    tokenizer, new = tokenizer_for_chat(chat, settings)
    model = load_pretrained(AutoModelForCausalLM, chat.model)
    add_embeddings(model, tokenizer, new)
    model.generation_config.eos_token_id = stop_tokens(tokenizer, model.generation_config)
    train, test = conversation_splits(
        chat.conversations,
        max_conversations=chat.max_conversations,
        num_test_sequences=chat.num_test_sequences,
        test_fraction=chat.test_fraction,
    )
    if test is None:
        never_evaluate(settings)
    trainer = FineTuner(model=model, args=settings, train_dataset=train, eval_dataset=test, processing_class=tokenizer)
    if end_of_turn(tokenizer) is None:
        trainer.say(f"{chat.model}: the chat template ends turns without a special token; generation stops at EOS")
    data = {"conversations": chat.conversations, "count": len(train), "seed": settings.seed}
    data |= {name: value for name in ("test_fraction", "chat_template") if (value := getattr(chat, name)) is not None}
    summary = train_and_save(trainer, settings=asdict(chat), base=chat.model, data=data)
    is_asked = "interrupted" not in summary and trainer.is_world_process_zero()
    end_of_answers = model.generation_config.eos_token_id
    del trainer, model  # the device needs the room
    gc.collect()
    if is_asked:
        heartbeats.enter("working")  # for as long as it takes; the other ranks wait
        with without_zero3_init():
            answer = _answer(settings.output_dir, chat.prompt, chat.max_new_tokens)
            print(f"prompt: {chat.prompt}\nanswer: {answer}")
            write_json(Path(settings.output_dir) / "answer.json", {"prompt": chat.prompt, "answer": answer})
            if chat.num_questions > 0:
                _count_answers(chat, settings.output_dir, test, end_of_answers)


def _answer(folder: str, prompt: str, max_new_tokens: int) -> str:
    """The answer of the saved model, by greedy decoding."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hmm_datasets.compat.transformers_caches import generate
    from hmm_datasets.text.tokenizers.chat_encoding import encode_conversation
    from hmm_datasets.training.pretrained import load_pretrained, on_device

    tokenizer = load_pretrained(AutoTokenizer, folder)
    model = on_device(load_pretrained(AutoModelForCausalLM, folder).eval())
    question = encode_conversation(tokenizer, [{"role": "user", "content": prompt}], add_generation_prompt=True)
    tokens = torch.tensor([question], device=model.device)
    settings = {"max_new_tokens": max_new_tokens, "do_sample": False}
    output = generate(model, input_ids=tokens, attention_mask=torch.ones_like(tokens), **settings)
    return tokenizer.decode(output[0, len(question) :], skip_special_tokens=True)


def _count_answers(chat: ConversationSettings, folder: str, test, stop: list[int]) -> None:
    """Let the model answer held-out questions before and after fine-tuning; write answers, print accuracies."""
    from answer_report import answers_table, compare_answers, transcripts
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hmm_datasets.evaluation.chat.answers import answer, questions_of
    from hmm_datasets.training.pretrained import load_pretrained, on_device

    questions = questions_of(test or [], chat.num_questions)
    if not questions:
        print(f"{chat.conversations}: no held-out question has an answer; no answers are counted")
        return
    tokenizer = load_pretrained(AutoTokenizer, folder)
    answers = [
        answer(
            on_device(load_pretrained(AutoModelForCausalLM, name)),
            tokenizer,
            questions,
            stop=stop,
            max_new_tokens=chat.max_new_tokens,
        )
        for name in (chat.model, folder)
    ]
    figures, rows = compare_answers(folder, questions, *answers)
    print(f"\n{answers_table(figures).text()}\n\n{transcripts(rows[:TRANSCRIPTS])}")


if __name__ == "__main__":
    run(main)

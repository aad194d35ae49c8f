"""A chat model that knows a few conversations by heart: seconds of training, and every answer is foreseen."""

import pytest
import torch
from memorized import CONVERSATIONS, TEXTS, WINDOW
from transformers import LlamaForCausalLM

from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.chat_encoding import encode_conversation
from hmm_datasets.text.tokenizers.chat_templates import end_of_turn
from hmm_datasets.training.model_configs import model_config


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory) -> str:
    """Its folder. Its answer to `Count` never ends."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    texts = [*TEXTS, *(content for turns in CONVERSATIONS for _, content in turns)]
    tokenizer = train_bpe(texts * 9, 320, show_progress=False)
    end = tokenizer.eos_token_id
    rows = [[end, *tokenizer.encode(text), end] for text in TEXTS]
    for turns in CONVERSATIONS:
        tokens = encode_conversation(tokenizer, [{"role": role, "content": content} for role, content in turns])
        rows.append(tokens[:-1] if turns[0][1] == "Count" else tokens)
    length = max(map(len, rows))
    inputs = torch.tensor([row + [1] * (length - len(row)) for row in rows])
    labels = torch.where(torch.arange(length) < torch.tensor([[len(row)] for row in rows]), inputs, -100)
    torch.manual_seed(0)
    config = model_config("d1", vocab_size=len(tokenizer), max_length=WINDOW, eos_token_id=end)
    config.num_hidden_layers = 2
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        loss = model(input_ids=inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
    model.generation_config.eos_token_id = [end, end_of_turn(tokenizer)]
    model.config.use_cache = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)

"""Perplexity of texts under a causal language model, computed in overlapping windows."""

import datasets

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation import metrics
from hmm_datasets.training.pretrained import load_pretrained


class Perplexity(metrics.CheckedMetric):
    """exp of the mean of -log P(token | tokens before it) over all tokens of all texts, each scored once. Bits per
    byte are given too, since they can be compared between tokenizers and perplexity cannot. Texts are read
    independently, each after a BOS, or else an EOS, in windows that overlap: a token has at least window - stride
    tokens before it, or all there are. Intervals are those of a ratio of sums over texts.

    Args:
        predictions: list of N strings, the texts.
        model: a causal language model of transformers in eval mode, or its folder or Hub name.
        tokenizer: its tokenizer, of any kind; None loads it from the name of the model.
        window (1024): tokens per window, including the beginning token. A model reads window - 1 of them at once.
        stride (512): tokens scored per window, at most window. Window M + 1 and stride M give the rolling
            log-likelihood of lm-evaluation-harness with a maximum length of M.
        batch_size (8): windows per batch.
        seed (0): seed of the bootstrap.

    Returns:
        perplexity, perplexity_low, perplexity_high: perplexity and its interval; all bounds are None for a single
            text.
        nats_per_token: logarithm of the perplexity.
        bits_per_byte, bits_per_byte_low, bits_per_byte_high, standard_error: bits per byte, its interval and its
            error.
        bits_per_character: bits per character of the text.
        lost_text: what of the texts the tokenizer loses, so that bits do not compare with those of others; or None.
        num_tokens, bytes, characters, num_documents: numbers of scored tokens, bytes, characters and documents.
        window, stride, least_context: settings of the windows, and the minimum context of a token.
        unit, level: what was drawn (document), and level of the intervals.
        items: for each text its number, nats, tokens, bytes.

    Example:
        >>> import evaluate
        >>> from hmm_datasets.evaluation.metrics import metric_path
        >>> from hmm_datasets.text.tokenizers.bpe import train_bpe
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> tokenizer = train_bpe(["low lower lowest"] * 9, 265, show_progress=False)
        >>> shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape))
        >>> _ = model.lm_head.weight.data.zero_()
        >>> metric = evaluate.load(metric_path("perplexity"))
        >>> found = metric.compute(predictions=["low", "lowest"], model=model, tokenizer=tokenizer)
        >>> round(found["perplexity"], 3)
        265.0
    """

    predictions = datasets.Value("string")

    def _compute(self, predictions, model, tokenizer=None, window=1024, stride=512, batch_size=8, seed=0) -> dict:
        import torch
        from accelerate import Accelerator
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from hmm_datasets.evaluation.document_windows import DocumentWindows
        from hmm_datasets.evaluation.text import measure_text

        if isinstance(model, str):
            accelerator = Accelerator(cpu=not torch.accelerator.is_available())
            tokenizer = tokenizer or load_pretrained(AutoTokenizer, model)
            model = load_pretrained(AutoModelForCausalLM, model).to(accelerator.device).eval()
        elif tokenizer is None:
            raise InputError("model is not a name, and tokenizer is None; pass the tokenizer too")
        else:
            accelerator = Accelerator(cpu=model.device.type == "cpu")
        windows = DocumentWindows(predictions, tokenizer, window, stride)
        return measure_text(model, tokenizer, windows, accelerator, batch_size=batch_size, seed=seed)

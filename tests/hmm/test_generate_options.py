"""Options of `generate` that are about caches and texts, on every causal language model of a process."""

import contextlib
import copy
from itertools import product

import pytest
import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.families import PermutedSymbols
from hmm_datasets.hmm.process_causal_lm import ProcessForCausalLM
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.hmm.tilted_causal_lm import TiltedHMMForCausalLM
from hmm_datasets.hmm.tokenizer import hmm_tokenizer

NAMES = ["sun", "rain", "fog"]
MESS3 = processes.mess3()
MODELS = {
    "hmm": HMMForCausalLM.from_hmm(MESS3, bos_token_id=3),
    "tilted": TiltedHMMForCausalLM.from_tilted(TiltedHMM(MESS3, [0.0, 1.0, -1.0], 0.5, 12), bos_token_id=3),
    "process": ProcessForCausalLM.from_process(PermutedSymbols(MESS3), bos_token_id=3),
}
CACHES = ("dynamic", "static", "quantized", "hybrid")
with contextlib.suppress(RuntimeError):  # torch 2.14 has no streams on a CPU, which transformers makes for these
    torch.Stream()
    CACHES += ("offloaded", "offloaded_static")
PROMPT = torch.tensor([[3, 0], [3, 2], [3, 1], [3, 1]])


def generated(model, way: str, **options) -> list[list[int]]:
    """What a model draws with options given by name, in a generation config, or in that of the model."""
    torch.manual_seed(0)
    always = {"do_sample": True, "top_k": 0, "pad_token_id": 3}
    if way == "by name":
        return model.generate(PROMPT, **{"max_new_tokens": 12} | always | options).tolist()
    if way == "in a config":
        config = GenerationConfig(**{"max_new_tokens": 12} | always | options)
        return model.generate(PROMPT, generation_config=config, tokenizer=hmm_tokenizer(NAMES, 3, bos=True)).tolist()
    model = copy.deepcopy(model)
    for name, value in options.items():
        setattr(model.generation_config, name, value)
    return model.generate(PROMPT, max_new_tokens=12, **always, tokenizer=hmm_tokenizer(NAMES, 3, bos=True)).tolist()


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/diodiogod/TTS-Audio-Suite/issues/136",
    "generation of a model whose configuration has no `num_hidden_layers`",
    "models of processes take every `cache_implementation` but `paged`, which is refused by name",
)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["by name", "in a config", "in the model"])
def test_a_cache_of_any_kind_changes_nothing(name, way):
    expected = generated(MODELS[name], "by name")
    for cache in CACHES:
        assert generated(MODELS[name], way, cache_implementation=cache) == expected, cache


@pytest.mark.parametrize("name", MODELS)
def test_paged_generation_is_refused_in_a_line(name):
    with pytest.raises(InputError, match=r"^cache_implementation is 'paged', but an HMM has no keys and values"):
        MODELS[name].generate(PROMPT, max_new_tokens=2, cache_implementation="paged")


def length_of(row: list[int], endings: list[list[int]]) -> int:
    """The length of a row up to the first of some endings after the prompt."""
    ends = (end for end in range(3, len(row)) if any(row[:end][-len(ending) :] == ending for ending in endings))
    return next(ends, len(row))


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/48339",
    "`stop_strings` with a vocabulary of words, which cannot write the text that transformers tries them with",
    "models of processes stop at the symbols; a word that is no symbol is refused by name",
)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["by name", "in a config", "in the model"])
def test_generation_stops_at_symbols_by_name(name, way):
    tokenizer = hmm_tokenizer(NAMES, 3, bos=True)
    whole = generated(MODELS[name], "by name")
    for first, second in product(["sun", "rain sun", "fog  fog", "sun rain fog"], [None, "fog", " fog rain"]):
        strings = [first] if second is None else [first, second]
        endings = [[NAMES.index(word) for word in string.split()] for string in strings]
        more = {"tokenizer": tokenizer} if way == "by name" else {}
        rows = generated(MODELS[name], way, stop_strings=strings, **more)
        length = max(length_of(row, endings) for row in whole)
        assert rows == [row[:length] for row in whole], "without EOS all rows go on until the last has stopped"


class AtLength(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] >= 5)


def test_other_criteria_stay_and_one_text_may_be_given():
    tokenizer = hmm_tokenizer(NAMES, 3, bos=True)
    criteria = StoppingCriteriaList([AtLength()])
    options = {"stop_strings": "fog sun", "tokenizer": tokenizer, "stopping_criteria": criteria}
    rows = MODELS["hmm"].generate(PROMPT, max_new_tokens=9, do_sample=False, **options)
    assert rows.shape[1] <= 5


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("strings", "message"),
    [
        ("snow", "^stop_strings: 'snow' is not a symbol of this model; expected some of sun, rain, fog$"),
        (["sun", "rain snow"], "^stop_strings: 'snow' is not a symbol"),
        (["su"], "^stop_strings: 'su' is not a symbol"),
        ([" "], "^stop_strings has an empty text"),
    ],
)
def test_texts_that_are_no_symbols_are_refused_before_anything_is_generated(name, strings, message):
    with pytest.raises(InputError, match=message):
        MODELS[name].generate(PROMPT, stop_strings=strings, tokenizer=hmm_tokenizer(NAMES, 3, bos=True))

import shlex

import pytest
from experiments import load
from stage_flags import read_flags

from hmm_datasets.errors import InputError
from hmm_datasets.files import write_yaml
from hmm_datasets.operations.launching import recipe_settings
from hmm_datasets.runtime.command_line import parse_values

GOOD = [
    "",
    "--fp16 true",
    "--fp16=true",
    "--fp16",
    "--bf16 false --learning-rate=1e-3 --global_batch_size 1_000",
    "--batch_ramp 16:100 32:300 --train_budget '12 hours'",
    "--lr_scheduler_kwargs '{\"min_lr\": 1e-5}' --lr_scheduler_type cosine_with_min_lr",
    "--sample_prompts 'The cat' \"It's\" --run_name 123 --time_limit 0:12:00",
    "--bf16 none --report_to none --seed 3",
]
BAD = {
    "--lenght 3": "unknown flag --lenght; did you mean --length?",
    "--launch zero1": "unknown flag --launch",
    "--config my.yaml": "unknown flag --config",
    "--learning_rate": "argument --learning_rate: expected one argument",
    "--learning_rate high": "argument --learning_rate: invalid float value: 'high'",
    "--fp16 maybe": "argument --fp16: invalid bool value: 'maybe'",
    "64": "64: not the value of any flag",
    "--global_batch_size 64 65": "65: not the value of any flag",
    "-fp16 true": "-fp16: not the value of any flag",
    "--run_name 'a": "No closing quotation",
    "--fp16 --length=9": "--length is decided by the experiment itself; leave it out",
    "--output-dir here": "--output_dir is decided by the experiment itself; leave it out",
    "--max_steps 3": "--max_steps is decided by the experiment itself; leave it out",
    "--hub_token mine": "--hub_token is a secret, which files would show; set HF_TOKEN or the like instead",
}


@pytest.mark.parametrize("text", GOOD)
def test_flags_mean_in_a_file_of_a_sweep_what_they_mean_on_a_command_line(text, tmp_path):
    kinds = recipe_settings("pretrain")
    write_yaml(tmp_path / "cell.yaml", read_flags(text) | {"output_dir": "out"})
    of_file = parse_values(*kinds, arguments=["--config", str(tmp_path / "cell.yaml")])
    assert of_file == parse_values(*kinds, arguments=[*shlex.split(text), "--output_dir", "out"])
    assert bool(read_flags(text)) == bool(text)


@pytest.mark.parametrize("text", BAD)
def test_what_would_be_dropped_or_would_take_the_place_of_the_experiments_own_is_refused(text):
    with pytest.raises(InputError) as caught:
        read_flags(text, ("output_dir", "length", "train_tokens"))
    assert str(caught.value).startswith(f"pretrain: {BAD[text]}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("experiment", "kind", "flags", "message"),
    [
        ("zac_gpt", "ZacSettings", {"sft": "--output_dir here"}, "sft: --output_dir is decided by the experiment"),
        ("zac_gpt", "ZacSettings", {"lima": "--learnin_rate 1"}, "lima: unknown flag --learnin_rate"),
        ("zac_gpt", "ZacSettings", {"evaluate": "--windwo 3"}, "evaluate: unknown flag --windwo"),
        ("zac_gpt", "ZacSettings", {"tokenizer": "--test_fraction 0.5"}, "tokenizer: --test_fraction is decided by"),
        ("zac_gpt", "ZacSettings", {"tokenize": "--conversations x"}, "tokenize: --conversations is decided by"),
        ("tinystories_hmm", "TinyStoriesSettings", {"fit": "--num_states 3"}, "fit: --num_states is decided"),
        ("tinystories_hmm", "TinyStoriesSettings", {"pretrain": "--hmm x"}, "pretrain: --hmm is decided"),
        (
            "tr1",
            "TR1Settings",
            {"pretrain": "--time_limit 1:00"},
            "pretrain: --time_limit is decided",
        ),
    ],
)
def test_flags_of_every_stage_are_read_before_the_first_one(experiment, kind, flags, message):
    module = load(experiment)
    with pytest.raises(InputError, match=message):
        (getattr(module, "sweeps", None) or module.stages)(getattr(module, kind)(output_dir="out", **flags))

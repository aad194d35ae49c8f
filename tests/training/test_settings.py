from dataclasses import dataclass, field

import pytest

from hmm_datasets.errors import InputError, suggestion
from hmm_datasets.runtime.command_line import parse_settings, parse_values
from hmm_datasets.training.settings import DPOSettings, GRPOSettings, PretrainSettings, SFTSettings
from hmm_datasets.training.sources import DataSettings

QUOTED = ", and text such as no, on, 12 or 2026-01-31 in quotes"


@dataclass
class Data:
    """Settings of a recipe, one of each type."""

    corpus: str = field(metadata={"help": "Needed."})
    hmm: str | None = None
    length: int = 64
    rate: float = 0.5
    tie: bool = False
    names: list[str] = field(default_factory=list)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "settings.yaml"

    def write(text: str) -> list[str]:
        path.write_text(text)
        return ["--config", str(path)]

    return write


def parse(arguments, *kinds):
    return parse_settings(*(kinds or (Data,)), arguments=arguments)


def error(arguments, *kinds) -> str:
    with pytest.raises(InputError) as caught:
        parse(arguments, *kinds)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Values


def test_a_file_sets_its_keys_and_leaves_the_other_defaults(config):
    (found,) = parse(config("corpus: a\nlength: 5\nrate: 1e-3\ntie: yes\nnames: [x, y]\nhmm: null"))
    assert found == Data("a", None, 5, 1e-3, True, ["x", "y"])
    assert parse(config("corpus: a\nrate: 2"))[0].rate == 2


def test_a_flag_overrides_the_file(config):
    arguments = config("corpus: a\nlength: 5\ntie: true")
    (found,) = parse([*arguments, "--length", "7", "--tie", "no", "--hmm=some/folder"])
    assert found == Data("a", "some/folder", 7, tie=False)
    assert parse(["--length", "7", *arguments])[0].length == 7
    assert parse([*arguments, "--corpus", "b"])[0].corpus == "b"


def test_flags_alone_are_enough():
    assert parse(["--corpus", "a", "--rate", "3"])[0] == Data("a", rate=3)


def test_the_file_may_be_named_with_an_equals_sign(config):
    _, path = config("corpus: a\nlength: 5")
    assert parse([f"--config={path}"])[0].length == 5


def test_a_file_fills_several_dataclasses(config, tmp_path):
    text = (
        f"corpus: a\nmax_steps: 3\noutput_dir: {tmp_path}\nglobal_batch_size: 32\nlr_scheduler_kwargs:\n  min_lr: 1e-5"
    )
    data, training = parse(config(text), Data, PretrainSettings)
    assert data.corpus == "a"
    assert (training.max_steps, training.global_batch_size, training.output_dir) == (3, 32, str(tmp_path))


# Bad input


def test_variables_of_the_environment_are_no_settings(config):
    file = config("corpus: a\nenv:\n  HMM_DATASETS_TEST_VARIABLE: after")
    assert error(file).endswith("settings.yaml: unknown setting 'env'; --help lists all")


def test_a_missing_file_is_named(tmp_path):
    assert error(["--config", str(tmp_path / "no.yaml")]) == f"{tmp_path / 'no.yaml'}: no such file"
    assert error(["--config", str(tmp_path)]) == (
        f"{tmp_path}: cannot be used (Is a directory); it is a folder; name a file"
    )
    assert error(["--corpus", "a", "--config"]) == "argument --config: expected one argument"
    assert error(["--corpus", "a", "--config="]) == "--config needs a YAML file"


def test_an_error_gives_the_first_byte_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("corpus: a\n# Gr\u00f6\u00dfe\n".encode("latin-1"))
    told = f"{path}: not text in UTF-8: byte 14 is 0xf6, in line 2; save the file with the encoding UTF-8"
    assert error(["--config", str(path)]) == told
    path.write_bytes(path.read_bytes().decode("latin-1").encode())
    assert parse(["--config", str(path)])[0].corpus == "a", "the remedy works"


@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/6655",
    "a settings file that is empty, a list or a number, without a TypeError",
    "one line that names the file and what was expected",
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corpus: a\nlength: 5\n  rate: : 3", ":3: not YAML (mapping values are not allowed here)"),
        ("corpus: [a", ":1: not YAML (expected ',' or ']', but got '<stream end>')"),
        ("corpus: a\n\tlength: 5", ":2: not YAML (found character '\\t' that cannot start any token)"),
        ("- corpus", ": expected a mapping of settings, found list"),
        ("", ": expected a mapping of settings, found NoneType"),
        ("42", ": expected a mapping of settings, found int"),
    ],
)
def test_a_malformed_file_is_named_with_the_line(config, text, message):
    arguments = config(text)
    assert error(arguments) == f"{arguments[1]}{message}"


@pytest.mark.outside(
    "https://github.com/UMEP-dev/SUEWS/issues/1647",
    "a key of an older version in a settings file was dropped without a word",
    "every unknown key is refused, with the nearest name, or where all are listed",
)
@pytest.mark.outside(
    "https://github.com/benbjohnson/litestream/issues/1403",
    "an unknown key in a settings file looks configured and does nothing",
    "every unknown key is refused, with the nearest name, or where all are listed",
)
@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/3543",
    "an error for a mistyped key of a settings file",
    "refused with the file and the nearest name",
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lenght: 5", "unknown setting 'lenght'; did you mean length?"),
        ("zzzz: 5", "unknown setting 'zzzz'; --help lists all"),
        ("3: 5", "unknown setting 3; --help lists all"),
        ("length: five", "length is 'five' (str); expected int"),
        ("length: 5.5", "length is 5.5 (float); expected int"),
        ("length: true", "length is True (bool); expected int"),
        ("length: [1]", "length is [1] (list); expected int"),
        ("length: null", "length is None (NoneType); expected int"),
        ("rate: fast", "rate is 'fast' (str); expected float"),
        ("rate: true", "rate is True (bool); expected float"),
        ("tie: 3", "tie is 3 (int); expected bool"),
        ("tie: maybe", "tie is 'maybe' (str); expected bool"),
        ("hmm: 5", f"hmm is 5 (int); expected str | None{QUOTED}"),
        ("hmm: {a: b}", f"hmm is {{'a': 'b'}} (dict); expected str | None{QUOTED}"),
    ],
)
def test_a_wrong_key_or_type_is_named_with_the_file(config, text, message):
    arguments = config(f"corpus: a\n{text}")
    assert error(arguments) == f"{arguments[1]}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_steps: 3.5", "max_steps is 3.5 (float); expected int"),
        ("max_steps: 3\nlearning_rate: abc", "learning_rate is 'abc' (str); expected float"),
        ("max_steps: 3\nlogging_steps: .inf", "logging_steps is inf; expected a finite number"),
        ("max_steps: 3\nlearning_rate: .nan", "learning_rate is nan; expected a finite number"),
        ("max_steps: 3\nweight_decay: 'inf'", "weight_decay is 'inf' (str); expected float"),
        ("max_steps: 3\nbf16: 7", "bf16 is 7 (int); expected bool | None"),
        ("max_steps: 3\ntrain_tokens: 1.5", "train_tokens is 1.5 (float); expected int | None"),
    ],
)
def test_types_of_the_trainers_settings_are_checked_too(config, tmp_path, text, message):
    arguments = config(f"output_dir: {tmp_path}\n{text}")
    assert error(arguments, PretrainSettings) == f"{arguments[1]}: {message}"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lenght", "5"], "unknown flag --lenght; did you mean --length?"),
        (["--leng", "5"], "unknown flag --leng; did you mean --length?"),
        (["--zzzz=5"], "unknown flag --zzzz; --help lists all"),
        (["--length", "five"], "argument --length: invalid int value: 'five'"),
        (["--length", "1.5e0"], "argument --length: invalid int value: '1.5e0'"),
        (["--dataset_name", "x"], "unknown flag --dataset_name; did you mean --corpus?"),  # as elsewhere
        (["stray"], "stray: not the value of any flag"),
    ],
)
def test_a_wrong_flag_is_named(flags, message):
    assert error(["--corpus", "a", *flags]) == message


def test_a_setting_that_only_other_recipes_have_is_named_without_a_guess(config):
    for kind, name in ((GRPOSettings, "train_tokens"), (GRPOSettings, "batch_ramp"), (DPOSettings, "z_loss")):
        assert error([f"--{name}", "5"], kind) == f"unknown flag --{name}, which other recipes have"
        arguments = config(f"{name}: 5")
        assert error(arguments, kind) == f"{arguments[1]}: unknown setting {name!r}, which other recipes have"
        with pytest.raises(TypeError, match=name):
            kind("x", **{name: 5})
    # A property of transformers' settings is no setting anywhere.
    assert "recipes" not in error(["--train_batch_size", "5"], GRPOSettings)


@pytest.mark.outside(
    "https://github.com/hiyouga/LlamaFactory/issues/4014",
    "numbers such as 2e-5, which YAML 1.1 takes for text, in a settings file",
    "read as numbers, in files and flags; whole ones (`train_tokens: 1e9`) also in settings that may be none",
)
@pytest.mark.parametrize("written", ["1000", "1_000", "1e3", "1.0e3", "1.0e+3"])
def test_whole_numbers_are_read_as_people_write_them(config, written, tmp_path):
    (flag,) = parse(["--corpus", "a", "--length", written])
    (setting,) = parse(config(f"corpus: a\nlength: {written}"))
    assert (flag.length, setting.length) == (1000, 1000)
    given = parse_values(PretrainSettings, arguments=["--train_tokens", written])["train_tokens"]
    in_file = parse_values(PretrainSettings, arguments=config(f"train_tokens: {written}"))["train_tokens"]
    assert (given, in_file, type(in_file)) == (1000, 1000, int)
    assert parse_values(PretrainSettings, arguments=["--train_tokens", "none"])["train_tokens"] is None


def test_a_flag_takes_the_place_of_another_budget_or_source_in_the_file(config, tmp_path):
    text = f"output_dir: {tmp_path}\ntrain_tokens: 1000\nlogging_steps: 3\nhmm: mess3\n"
    (tmp_path / "tokenizer").mkdir()
    flags = ["--max_steps", "5", "--tokens", str(tmp_path / "text")]
    data, settings = parse([*config(text), *flags], DataSettings, PretrainSettings)
    assert settings.budget.given == {"max_steps": 5}
    assert settings.logging_steps == 3
    assert (data.hmm, data.tokens) == (None, str(tmp_path / "text"))
    assert parse(config(text), DataSettings, PretrainSettings)[1].budget.given == {"train_tokens": 1000}


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/9224",
    "true and false as values of flags, as in a settings file",
    "`--tie`, `--tie true`, `--tie no`; `--tie maybe` is refused",
)
def test_flags_of_truth_values_may_have_one():
    given = {(): True, ("true",): True, ("no",): False, ("0",): False}
    for value, expected in given.items():
        assert parse(["--corpus", "a", "--tie", *value])[0].tie is expected
    assert error(["--corpus", "a", "--tie", "maybe"]) == "argument --tie: invalid bool value: 'maybe'"


def test_a_name_alone_is_a_list_of_one(config):
    assert parse(config("corpus: a\nnames: x"))[0].names == ["x"]


def test_two_settings_files_are_refused(config):
    assert "--config is given twice" in error([*config("corpus: a"), "--config", "other.yaml"])


def test_a_value_may_be_flags_for_another_program():
    (settings,) = parse(["--corpus", "--model 1m --steps 5"])
    assert settings.corpus == "--model 1m --steps 5"


def test_a_setting_without_a_default_has_to_be_given(config):
    message = "the following arguments are required: --corpus"
    assert error([]) == message
    assert error(config("length: 5")) == message


def test_errors_of_a_dataclass_pass_as_they_are(config, tmp_path):
    @dataclass
    class Refusing:
        number: int = 0

        def __post_init__(self):
            raise InputError("number is refused") if self.number == 1 else ValueError("a library says no")

    assert error(["--number", "1"], Refusing) == "number is refused"
    assert error(["--number", "2"], Refusing) == "settings: a library says no"


# Settings of training


def pretraining(tmp_path, **settings) -> PretrainSettings:
    return PretrainSettings(output_dir=str(tmp_path), **{"max_steps": 3, **settings})


def test_accumulation_follows_from_the_global_batch(tmp_path):
    assert pretraining(tmp_path, global_batch_size=64, per_device_train_batch_size=16).gradient_accumulation_steps == 4
    assert pretraining(tmp_path, global_batch_size=8, per_device_train_batch_size=8).gradient_accumulation_steps == 1


def test_accumulation_that_contradicts_the_global_batch_is_refused(tmp_path):
    sizes = {"global_batch_size": 64, "per_device_train_batch_size": 16}
    assert pretraining(tmp_path, **sizes, gradient_accumulation_steps=4).gradient_accumulation_steps == 4
    with pytest.raises(InputError, match=r"gradient_accumulation_steps is 8, but follows .*: 4 here"):
        pretraining(tmp_path, **sizes, gradient_accumulation_steps=8)


def test_a_global_batch_that_does_not_divide_is_refused(tmp_path):
    with pytest.raises(InputError, match="global_batch_size 60 is not a multiple of world size 1 x per_device"):
        pretraining(tmp_path, global_batch_size=60, per_device_train_batch_size=16)


def test_several_budgets_are_refused(tmp_path):
    with pytest.raises(InputError, match="max_steps 3 and train_tokens 100 are both budgets; expected one of them"):
        pretraining(tmp_path, max_steps=3, train_tokens=100)


def test_the_default_budget_is_twenty_tokens_per_parameter(tmp_path):
    budget = pretraining(tmp_path, max_steps=-1).budget
    assert (budget.name, budget.amount) == ("tokens_per_parameter", 20)


def test_rows_are_read_in_order_and_every_token_counts(tmp_path):
    settings = pretraining(tmp_path)
    assert settings.train_sampling_strategy == "sequential"
    assert settings.include_num_input_tokens_seen == "non_padding"
    assert settings.logging_nan_inf_filter is False


def test_fine_tuning_counts_tokens_without_padding_and_learns_the_assistants_words(tmp_path):
    settings = SFTSettings(output_dir=str(tmp_path), max_steps=3)
    assert settings.assistant_only_loss is True
    assert settings.include_num_input_tokens_seen == "non_padding"
    assert settings.gradient_accumulation_steps * settings.per_device_train_batch_size == 64


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400"])
def test_no_number_of_a_flag_is_nan_or_infinite(tmp_path, value):
    for name in ("logging_steps", "learning_rate", "eval_steps", "max_grad_norm"):
        message = error(["--output_dir", str(tmp_path), "--max_steps", "3", f"--{name}={value}"], PretrainSettings)
        assert name in message
        assert "finite" in message


def test_a_text_where_tokens_are_wanted_is_answered_with_what_makes_tokens_of_it(tmp_path):
    book = tmp_path / "mybook.txt"
    book.write_text("one two three\n")
    with pytest.raises(
        InputError, match=f"tokens is {book}, a file; name the folder that `hmm-datasets tokenize {book}`"
    ):
        DataSettings(tokens=str(book))
    assert suggestion("--corpus", ["--core_tasks", "--tokens", "--hmm"]) == "; did you mean --tokens?"
    assert suggestion("--corpus", ["--core_tasks", "--conversations"]) == "; did you mean --conversations?"


@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps_are_no_budget_and_plan_is_named(tmp_path, steps):
    for kind in (PretrainSettings, SFTSettings):
        expected = "a number above 0; `hmm-datasets plan`" if steps == 0 else "-1 or more"
        with pytest.raises(InputError, match=f"max_steps is {steps}; expected {expected}"):
            kind(str(tmp_path), max_steps=steps)
        kind(str(tmp_path), max_steps=-1)

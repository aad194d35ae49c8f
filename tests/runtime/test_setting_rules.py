"""Numbers out of range and settings that have no effect are refused in every command, before it starts.

What is tried follows from the declarations: every number of every command, and every setting that has
no effect beside others, through the real parsers.
"""

import dataclasses
import fnmatch
import functools
import itertools
import re
import typing

import pytest

from hmm_datasets.cli import COMMANDS, main, settings_of_commands
from hmm_datasets.compat.versions import untried_versions
from hmm_datasets.errors import InputError
from hmm_datasets.runtime.command_line import CommandLine
from hmm_datasets.runtime.setting_rules import (
    NumberRange,
    checked,
    defaults_of,
    fields_of,
    ranges_of,
    void_rows,
    voids_of,
)
from hmm_datasets.runtime.settings import SettingsParser, complete, members

ALL = {name: tuple(map(complete, kinds)) for name, kinds in settings_of_commands().items() if kinds}
FACTS = {
    "hmm is one process": ({"hmm": ["mess3"]}, {"hmm": ["mess3", "even"]}),
    "output is another file than a .txt file": ({"output": "x.npy"}, {"output": "x.txt"}),
    "settings is of a fit": ({"settings": "fit"}, {"settings": "pretrain"}),
    "corpus is a file of symbols": ({"corpus": "rows.npy"}, {"corpus": "tinystories"}),
    "corpus is a file of symbols and there is no test": ({"corpus": "rows.npy"}, {"corpus": "a.npy", "test": "b.npy"}),
    "targets are processes": ({"targets": ["process:mess3"]}, {"targets": ["words.txt"]}),
} | {
    f"tasks are without {task}": ({"tasks": ["training"]}, {"tasks": [task]})
    for task in ("optimum", "beliefs", "text", "core", "chat", "completions")
}
"""Settings for which each fact holds, and others for which it does not."""

OTHERS = {"train_budget": "7 hours", "time_limit": "9:00", "split_pattern": "gpt2", "report_to": ["trackio"]}


@functools.cache
def hints(command):
    return {name: hint for kind in reversed(ALL[command]) for name, hint in typing.get_type_hints(kind).items()}


def words_of(command, values):
    """A command line that has these settings; arguments without a flag come first."""
    fields = fields_of(ALL[command])
    words, flags = [], []
    for name, value in values.items():
        texts = [str(part) for part in (value if isinstance(value, list) else [value])]
        is_switch = fields[name].metadata.get("is_switch") and value is True
        if fields[name].metadata.get("positional"):
            words += texts
        else:
            flags += [f"--{name}"] if is_switch else [f"--{name}", *texts]
    return [*words, *flags]


def parse(command, values):
    """What the real parser of a command makes of settings: the values that go on."""
    kinds, words = ALL[command], words_of(command, values)
    if command not in COMMANDS:
        return CommandLine.read(words).values(*kinds)
    parser = SettingsParser()
    parser.add_settings(kinds[0])
    given = vars(parser.parse(words)[0])
    return checked(kinds, given, given)


def required(command):
    """Values of what must be given."""
    values = {}
    for name, field in fields_of(ALL[command]).items():
        nargs = field.metadata.get("flag", {}).get("nargs")
        must = field.default is field.default_factory and "rest" not in field.metadata
        if must or (field.metadata.get("positional") and nargs in (None, "+")):
            values[name] = example(command, name)
    return values


def example(command, name):
    """A value of a setting that its type allows, and that is not its default."""
    field, hint = fields_of(ALL[command])[name], hints(command)[name]
    if name in OTHERS:
        return OTHERS[name]
    kinds = members(hint)
    default = defaults_of([field]).get(name)
    literals = [
        choice for kind in kinds for choice in typing.get_args(kind) if typing.get_origin(kind) is typing.Literal
    ]
    lists = [typing.get_args(kind)[0] for kind in kinds if typing.get_origin(kind) is list]
    number = next(
        value for value in (0.25, 2, 7, 0.75, 0.125) if ranges_of(ALL[command])[name].allow(value) and value != default
    )
    whole = next(value for value in (1, 2, 7, 40) if value != default)
    if literals:
        return next(choice for choice in literals if choice != default)
    if dict in kinds or any(typing.get_origin(kind) is dict for kind in kinds):
        return '{"a": true}'
    if (lists and lists[0] in (int, float)) or ("weights" in name and float in lists):
        return [whole]
    if lists and str not in kinds:
        return ["word"]
    if bool in kinds and not {int, float} & set(kinds):
        return True
    if int in kinds:
        return whole
    return number if float in kinds else "word"


def numbers():
    """Every setting that is a number or a list of them, by its command."""
    for command in ALL:
        for name, field in fields_of(ALL[command]).items():
            kinds = members(hints(command)[name]) if "rest" not in field.metadata else ()
            inner = [
                part
                for kind in kinds
                for part in (typing.get_args(kind) if typing.get_origin(kind) is list else [kind])
            ]
            if {int, float} & set(inner):
                yield command, name, int in inner and float not in inner


NUMBERS = {(name, whole, ranges_of(ALL[command])[name]): command for command, name, whole in sorted(set(numbers()))}
NUMBERS = sorted((command, name, whole) for (name, whole, _), command in NUMBERS.items())  # each of a kind once
ENTRIES = [
    (command, name, void)
    for command, kinds in ALL.items()
    for void in voids_of(kinds)
    for part in void.names.split()
    for name in fnmatch.filter(fields_of(kinds), part) or [part]
]
VOIDS = [*{(name, void): (command, name, void) for command, name, void in ENTRIES}.values()]


def cases(void):
    """Settings beside which a setting has no effect, and beside which it may have one."""
    word, _, what = void.condition.partition(" ")
    if word in ("with", "without"):
        parts = what.split(" or ")
        beside, alone = [{part: None} for part in parts], [dict.fromkeys(parts, "off")]
    elif what in FACTS:
        beside, alone = ([part] for part in FACTS[what])
    else:
        name, _, choices = what.partition(" is ")
        beside, alone = [{name: choice} for choice in choices.split(" or ")], [{name: "another"}]
    return (beside, alone) if word in ("with", "if") else (alone, beside)


def filled(command, values):
    """Values with an example for None, and without what is off."""
    fields = fields_of(ALL[command])
    result = {}
    for name, value in values.items():
        default = defaults_of([fields[name]]).get(name)
        if value == "off":
            result |= (
                {name: "false"}
                if default is True
                else {name: 0}
                if isinstance(default, float | int) and default
                else {}
            )
        else:
            result[name] = example(command, name) if value is None else value
    return result


def name_list(pairs):
    return [f"{command}-{name}" for command, name, *_ in pairs]


@pytest.mark.parametrize(("command", "name", "void"), VOIDS, ids=name_list(VOIDS))
def test_a_setting_beside_one_that_makes_it_void_is_refused_by_its_name_and_accepted_without(command, name, void):
    if name not in fields_of(ALL[command]) and untried_versions():
        pytest.skip("older versions of transformers do not have it")
    value = {name: example(command, name)}
    beside, others = cases(void)
    for case in beside:
        line = refusal(command, filled(command, case) | value, but=name)
        assert re.match(rf"--{name} is .*, but has no effect .*; leave (it|one of them) out", line)
    for case in others:  # other entries of the table may refuse it
        line = refusal(command, filled(command, case) | value)
        assert f"--{name} is" not in line or f"no effect {void.condition}" not in line


def refusal(command, values, but=""):
    """The line that refuses settings, with what those other than `but` need; empty if they are accepted."""
    given = required(command) | values
    for _ in range(4):
        try:
            parse(command, given)
        except InputError as error:
            line = str(error)
            needed = re.search(r"^--(\w+) is .* or give (\w+) ?((?!or)\w+)?", line)
            if needed is None or needed[1] == but:
                return line
            given[needed[2]] = needed[3] or example(command, needed[2])
        else:
            return ""
    return line


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "name", "void"), VOIDS, ids=name_list(VOIDS))
def test_the_table_names_settings_that_there_are(command, name, void):
    fields = fields_of(ALL[command])
    assert name in fields
    word, _, what = void.condition.partition(" ")
    assert word in ("with", "without", "if", "unless")
    named = what.split(" or ") if word in ("with", "without") else [re.match(r"\w+", what)[0]]
    assert set(named) <= fields.keys()


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "name", "is_whole"), NUMBERS, ids=name_list(NUMBERS))
def test_a_number_out_of_its_range_is_refused_by_the_name_that_was_typed(command, name, is_whole):
    allowed = ranges_of(ALL[command])[name]
    words = [] if str in members(hints(command)[name]) else ["-0.5", "nan", "inf", "-inf"]
    tried = [*words, "-2", "-1", "0", "1e400", "1e20", "9" * 400]
    given = required(command)
    for text in tried:
        number = float(text) if len(text) < 9 else 1e308
        is_legal = allowed.allow(int(number) if number.is_integer() and is_whole else number)
        if is_legal and not (is_whole and not number.is_integer()) and not (is_whole and len(text) > 9):
            continue
        with pytest.raises(InputError) as caught:
            parse(command, given | {name: text})
        line = str(caught.value)
        assert name in line, line
        assert "\n" not in line
        assert len(line) < 1000


ANY_SIGN = {"weights", "reward_weights", "loss_weights", "f_alpha_divergence_coef"}
MINUS_ONE = {"workers", "max_steps", "local_rank"}


def test_only_these_numbers_may_be_negative():
    negative = {name for command, name, _ in NUMBERS if ranges_of(ALL[command])[name].allow(-1)}
    assert negative <= ANY_SIGN | MINUS_ONE
    assert {name for command, name, _ in NUMBERS if ranges_of(ALL[command])[name].allow(-2)} <= ANY_SIGN


@pytest.mark.parametrize("number", [0, 0.5, 1, 2, -1, 7e9])
@pytest.mark.parametrize(("least", "above", "most", "below"), itertools.product([0, 1], [-9, 0.5], [1, 9], [1, 2]))
def test_a_range_allows_what_its_words_say(number, least, above, most, below):
    allowed = NumberRange(least, most, above, below)
    assert allowed.allow(number) == (max(least, above) <= number <= min(most, below) and above < number < below)


def test_the_table_has_a_row_for_each_setting():
    rows = void_rows(ALL)
    assert len(rows) == sum(len(void.names.split()) for kinds in ALL.values() for void in voids_of(kinds))
    assert any(row[:2] == ("tokenize", "tokenizer_splits") and "with tokenizer" in row[2] for row in rows)


def test_a_flag_that_makes_a_setting_of_the_file_void_names_it_and_goes_on(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("hmm: mess3\noutput_dir: x\nsave_steps: 7\n")
    kinds = ALL["pretrain"]
    values = CommandLine.read(["--config", str(file), "--save_strategy", "no"]).values(*kinds)
    assert "save_steps" not in values
    assert f"{file}: save_steps is 7, but has no effect unless save_strategy is steps" in capsys.readouterr().err
    file.write_text("hmm: mess3\noutput_dir: x\nsave_steps: 7\nsave_strategy: 'no'\n")
    with pytest.raises(InputError, match=f"{file}: save_steps is 7, but has no effect"):
        CommandLine.read(["--config", str(file)]).values(*kinds)


def test_help_prints_beside_what_a_setting_has_no_effect(capsys):
    with pytest.raises(SystemExit):
        main(["chat", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(no effect if temperature is 0)" in text


@pytest.mark.parametrize(
    "kind", dict.fromkeys(kind for kinds in ALL.values() for kind in kinds), ids=lambda kind: kind.__name__
)
def test_every_default_is_within_its_range(kind):
    for field in dataclasses.fields(kind):
        default = defaults_of([field]).get(field.name)
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert ranges_of([kind])[field.name].allow(default)


MAPPING = {"max_new_tokens": 100, "do_sample": True, "temperature": 0.8}
FORMS = (
    "{max_new_tokens: 100, do_sample: true, temperature: 0.8}",
    '{"max_new_tokens": 100, "do_sample": true, "temperature": 0.8}',
    "{max_new_tokens: 100, do_sample: yes, temperature: 8e-1}",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["flag", "file", "quoted in a file"])
def test_a_mapping_is_read_in_braces_as_in_json(form, where, tmp_path):
    name, words = "lr_scheduler_kwargs", ["--hmm", "mess3"]
    file = tmp_path / "run.yaml"
    file.write_text(f"{name}: " + (f"'{form}'" if where == "quoted in a file" else form) + "\n")
    words += [f"--{name}", form] if where == "flag" else ["--config", str(file)]
    assert CommandLine.read(words).values(*ALL["pretrain"])[name] == MAPPING


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["save_strategy", "output_dir", "optimizer_from", "train_budget"])
@pytest.mark.parametrize("text", ["no", "on", "yes", "off", "2026-01-31", "12", "1_000", "1.5", ".inf"])
def test_what_yaml_takes_for_no_text_is_refused_or_read_as_it_stands(name, text, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(f"hmm: mess3\n{name}: {text}\n")
    with pytest.raises(InputError, match=f"{file}: {name} is .*(in quotes|a finite number)"):
        CommandLine.read(["--config", str(file)]).values(*ALL["pretrain"])


@pytest.mark.thorough
@pytest.mark.parametrize("folder", ["", " ", "/", "//", "/tmp/..", "a\udcff", "\udc80/b"])
@pytest.mark.parametrize("command", [name for name in ALL if "output_dir" in fields_of(ALL[name])])
def test_an_output_folder_that_nobody_means_is_refused(command, folder):
    if fields_of(ALL[command])["output_dir"].metadata.get("positional"):
        pytest.skip("an argument")
    with pytest.raises(InputError, match="output_dir"):
        parse(command, required(command) | {"output_dir": folder})

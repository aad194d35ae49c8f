"""What stages read is checked before the first begins."""

import json
import shlex
from pathlib import Path

import pytest
from experiments import imports_of, load
from tiny_chat import save_tiny_chat

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_yaml, write_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.operations.launching import recipe_names
from hmm_datasets.operations.stage_inputs import check_stages
from hmm_datasets.operations.stages import run_stages
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

PRETRAIN = "hmm-datasets pretrain --hmm process:mess3 --model 1m --train_tokens 100000"


def check(*commands: str, made=()) -> None:
    check_stages([("A title", shlex.split(command)) for command in commands], made)


def refused(*commands: str) -> str:
    with pytest.raises(InputError) as caught:
        check(*commands)
    return str(caught.value)


def recipe(name: str):
    return vars(load(name))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def test_no_stage_begins_if_a_later_one_would_not_find_what_it_reads(here):
    first = ("First", 'python -c \'open("begun", "w")\'')
    with pytest.raises(InputError, match=r"stage 2 \(Second\), before the first began: model: "):
        run_stages([first, ("Second", "hmm-datasets sft --model nowhere/model --output_dir b")])
    assert not (here / "begun").exists()


def test_what_an_earlier_stage_writes_need_not_be_there():
    tokenize = (
        "hmm-datasets tokenize tinystories-sample --conversations instructions-sample story-questions --output_dir out"
    )
    train = "hmm-datasets pretrain --tokens out/text --tokenizer out/tokenizer --model 1m --output_dir run"
    mixture = "hmm-datasets midtrain --model run --optimizer_from run --weights 0.5 0.5 --output_dir more --streams "
    check(tokenize, train, f"{mixture} out/text out/chat/story-questions", "hmm-datasets evaluate run/checkpoint-5")
    said = refused(tokenize, train, f"{mixture} out/text in/chat/stories")
    assert "stage 3 (A title), before the first began: streams: in/chat/stories: no such file or folder" in said
    assert "tokens: no/text: no such file or folder" in refused(tokenize, train.replace("out/text", "no/text"))
    check("hmm-datasets pretrain --hmm made/hmm --output_dir run", made=["made"])


def test_flags_values_and_processes_of_every_stage_are_checked():
    assert "did you mean --length" in refused(PRETRAIN + " --output_dir a", PRETRAIN + " --lengthh 3 --output_dir b")
    assert "invalid int value" in refused(PRETRAIN + " --length x --output_dir a")
    assert "is not a multiple of world size 16" in refused(
        PRETRAIN + " --launch ddp --num_processes 16 --output_dir a"
    )
    muon = PRETRAIN + " --optimizer muon --launch zero2 --num_processes 1 --output_dir a"
    assert "add --optimizer adamw, or --max_grad_norm 0" in refused(muon)
    check(muon + " --max_grad_norm 0")
    assert "neither a YAML file nor one of" in refused(PRETRAIN + " --launch nope --output_dir a")
    assert "nowhere.yaml" in refused("hmm-datasets evaluate m --config nowhere.yaml")
    assert "compare.py: no such file" in refused("python compare.py out")


def test_corpora_and_questions_of_late_stages_are_opened(here):
    (here / "chats.jsonl").write_text(json.dumps({"text": "a story"}) + "\n")
    model = PRETRAIN + " --output_dir a"
    assert "conversations: nowhere.jsonl: no such file" in refused(
        model, "hmm-datasets sft --model a --conversations nowhere.jsonl --output_dir b"
    )
    sft = "hmm-datasets sft --model a --conversations chats.jsonl --output_dir b"
    assert "chats.jsonl: contains text (text), expected conversations" in refused(model, sft)
    assert "preferences: pairs.jsonl: no such file" in refused(
        model, "hmm-datasets dpo --model a --preferences pairs.jsonl --output_dir b"
    )
    evaluate = "hmm-datasets evaluate a --targets process:mess3 --output_dir c"
    check(model, evaluate)
    assert "core_data: core: no such file or folder" in refused(model, f"{evaluate} --core_data core")
    assert "targets: " in refused(model, evaluate.replace("mess3", "mess33"))
    check(model, f"{evaluate} --chat_data instructions-sample --test_fraction 1")


def test_cells_of_a_sweep_are_checked_as_stages(here):
    (here / "sweep.yaml").write_text(
        "recipe: pretrain\noutput_dir: sweep\nsettings: {tokenizer: t/tokenizer}\n"
        "grid: {tokens: [t/text, u/text]}\nthen: ['evaluate {output_dir} --targets {tokens}/test']\n"
    )
    tokenize = "hmm-datasets tokenize tinystories-sample --output_dir {}"
    check(tokenize.format("t"), tokenize.format("u"), "hmm-datasets sweep sweep.yaml", "hmm-datasets evaluate sweep/x")
    said = refused(tokenize.format("t"), "hmm-datasets sweep sweep.yaml")
    assert "sweep.yaml: cell tokens=u-text" in said.replace("=text-", "=u-text-")
    assert "tokens: u/text: no such file or folder" in said


def settings_of(name: str, **given):
    """The functions of a recipe, and its settings as its smallest settings file gives them."""
    found = recipe(name)
    (kind,) = (one for key, one in found.items() if key.endswith("Settings") and one.__module__ != "builtins")
    file = shipped(EXPERIMENTS) / name / "small.yaml"
    return found, kind(**{**(read_yaml(file) if file.is_file() else {}), **given})


def began(found: dict, settings, monkeypatch) -> list:
    """The stages that a recipe would begin with, and what it says of those that follow, after all were checked."""
    calls = []

    def stages_checked(stages, *, later=(), made=()):
        flat = [(title, shlex.split(command)) for title, command in (*stages, *later)]
        check_stages(flat, made)
        calls.extend(flat)
        raise SystemExit(0)

    monkeypatch.setattr("hmm_datasets.operations.stages.run_or_exit", stages_checked)
    with pytest.raises(SystemExit):
        found["main"](settings)
    return calls


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("belief_geometry", {}),
        ("benchmark_models", {}),
        ("chat_ladder", {}),
        ("excess", {}),
        ("icl_transition", {}),
        ("icll", {}),
        ("known_optimum", {"output_dir": "out"}),
        ("leaky_tokenizer", {}),
        ("llm_on_hmms", {}),
        ("nonergodic", {"counts": [16], "num_sequences": 64}),
        ("tinystories_hmm", {}),
        ("tr1", {}),
        ("wordplay", {"text": "tinystories-sample"}),
        ("zac_gpt", {}),
    ],
)
def test_a_recipe_of_several_stages_would_find_all_it_reads(name, given, monkeypatch):
    if name == "belief_geometry":
        given = {"model": str(shipped("recipes/experiments/belief_geometry/llama.json"))}
    with imports_of(name):
        assert began(*settings_of(name, **given), monkeypatch)


def test_stages_that_begin_with_a_pretrained_model_find_it_and_its_preferences(tmp_path, monkeypatch):
    save_tiny_chat(tmp_path / "model")
    row = {"prompt": "Who?", "chosen": "Tom.", "rejected": "Go away."}
    write_jsonl(tmp_path / "pairs.jsonl", [row] * 9)
    model = {"model": str(tmp_path / "model")}
    with imports_of("chat_ladder"):
        found = began(*settings_of("chat_ladder", **model, preferences=str(tmp_path / "pairs.jsonl")), monkeypatch)
        assert [command[1] for _, command in found[:3]] == ["sft", "sft", "dpo"]
        with pytest.raises(InputError, match="give both"):
            settings_of("chat_ladder", **model)


def test_so_would_the_demo():
    check(*(command for _, command in recipe("demo")["STAGES"]))


def test_every_recipe_that_runs_stages_checks_them():
    """There is one way to run stages, and it checks them."""
    running = {path.parent.name for path in shipped("recipes").rglob("*.py") if "run_or_exit(" in path.read_text()}
    assert len(running) >= 14
    for path in shipped("recipes").rglob("*.py"):
        assert "subprocess" not in path.read_text(), path


def test_conversations_in_a_file_are_found_where_tokenize_writes_them(here, monkeypatch):
    """Midtraining looked for `chat/my.jsonl`, and found after pretraining that it is `chat/my`."""
    said = {"role": "assistant", "content": "Hi"}
    rows = [json.dumps({"messages": [{"role": "user", "content": f"{n}"}, said]}) for n in range(40)]
    (here / "my.jsonl").write_text("\n".join(rows))
    calls = began(*settings_of("zac_gpt", conversations=["my.jsonl", "story-questions"]), monkeypatch)
    (midtrain,) = (words for _, words in calls if words[1] == "midtrain")
    assert "outputs/zac_gpt_small/tokens/chat/my" in midtrain


def test_no_recipe_has_a_setting_that_the_command_takes_for_its_own():
    from hmm_datasets.operations.launching import recipe_settings

    assert not [name for name in recipe_names() for kind in recipe_settings(name) if hasattr(kind, "launch")]


def test_a_process_folder_is_opened(here):
    processes.mess3().save_pretrained(here / "hmm")
    check("hmm-datasets pretrain --hmm hmm --output_dir run")
    (here / "hmm" / "config.json").write_text("{")
    assert "stage 1 (A title), before the first began: hmm: " in refused(
        "hmm-datasets pretrain --hmm hmm --output_dir r"
    )

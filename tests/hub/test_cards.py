"""Cards contain all the facts they were given, in a form that the classes of huggingface_hub can read."""

import copy
import re

import numpy as np
import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard
from markdown_it import MarkdownIt

from hmm_datasets.errors import InputError
from hmm_datasets.hub.cards import template_path, write_card

FACTS = {
    "model": {
        "name": "Mess3 38M",
        "summary": "A Llama that saw nothing but Mess3.",
        "license": "Apache-2.0",
        "data": "Sequences of Mess3, each from the stationary distribution.",
        "parameters": 38_123_456,
        "tokens": 5_000_003_584,
        "global_batch": 512,
        "length": 128,
        "learning_rate": 3e-4,
        "precision": "bf16",
        "command": "accelerate launch recipes/pretrain.py --config a.yaml",
        "versions": {"transformers": "5.23.0", "torch": "2.13.0"},
        "metrics": [
            {"name": "Test loss", "value": 0.8123, "standard_error": 0.00012, "unit": "nats/token"},
            {"name": "Excess | loss", "value": 0.0011, "standard_error": None, "unit": "nats/token"},
        ],
        "optimal_loss": {"name": "Optimal loss", "value": 0.8112, "standard_error": 0, "unit": "nats/token"},
    },
    "hmm": {
        "name": "TinyStories in 500 states",
        "num_states": 500,
        "num_symbols": 4096,
        "corpus": "TinyStories",
        "license": "cdla-sharing-1.0",
        "log_likelihood_train": -4.125,
        "log_likelihood_test": -4.25,
        "entropy_rate": 4.0625,
        "entropy_rate_standard_error": 0.002,
        "command": "hmm-datasets fit stories.txt",
    },
    "dataset": {
        "name": "Mess3, permuted",
        "process": "Mess3 (x = 0.05, a = 0.85)",
        "fingerprint": "0123456789abcdef0123456789abcdef",
        "num_states": 3,
        "num_symbols": 4,
        "seed": 17,
        "length": 100,
        "bos": True,
        "num_sequences": 10_000,
        "num_test_sequences": 1_000,
        "format": 1,
        "columns": ["input_ids", "states", "log_probs"],
        "size": "1.2 MB",
        "exact": True,
        "optimal_loss": {"mean": 1.0625, "standard_error": 0.001},
        "entropy_rate": {"value": 1.03125, "standard_error": 0.0, "lower": 1.03, "upper": 1.04},
        "configs": [
            {"name": name, "splits": [{"split": split, "path": f"{folder}/{split}-*"} for split in ("train", "test")]}
            for name, folder in (("default", "data"), ("oracle", "oracle"))
        ],
        "tables": "nats at position      1    100    mean\nuniform           1.5000 1.2500  1.3750",
        "license": "apache-2.0",
    },
    "text": {
        "name": "Stories as tokens",
        "license": "cdla-sharing-1.0",
        "configs": [
            {
                "name": "text",
                "splits": [{"split": "train", "path": "data/text/train-*", "rows": 1234, "tokens": 5678}],
            },
            {"name": "chat", "splits": [{"split": "test", "path": "data/chat/test-*", "rows": 9, "tokens": None}]},
        ],
        "details": [{"name": "Vocabulary", "value": "2,048 tokens"}],
        "stream": "/text/train",
    },
}
CARD = {"model": ModelCard, "hmm": ModelCard, "dataset": DatasetCard, "text": DatasetCard}
KINDS = sorted(FACTS)
OF_FITS = ("corpus", "command", "log_likelihood_train", "log_likelihood_test")
REQUIRED = [
    (kind, name)
    for kind in KINDS
    for name in FACTS[kind]
    if (kind, name) not in {("dataset", "configs"), *(("hmm", name) for name in OF_FITS)}
]


def changed(kind, **changes):
    return {**copy.deepcopy(FACTS[kind]), **changes}


def front_matter(path):
    return yaml.safe_load(path.read_text(encoding="utf-8").split("---\n")[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_has_front_matter_that_the_hub_reads(tmp_path, kind):
    path = write_card(kind, tmp_path, FACTS[kind])
    assert path == tmp_path / "README.md"
    card = CARD[kind].load(path)
    assert card.data.license == FACTS[kind]["license"].lower()
    assert "hmm-datasets" in card.data.tags
    assert card.text.lstrip().startswith(f"# {FACTS[kind]['name']}\n")
    assert front_matter(path) == card.data.to_dict()
    assert "{{" not in card.content
    assert "{%" not in card.content
    assert "\n\n\n" not in card.text
    assert [entry.name for entry in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_fact_can_be_found_in_the_card(tmp_path, kind):
    text = write_card(kind, tmp_path, FACTS[kind]).read_text(encoding="utf-8")
    for name, value in FACTS[kind].items():
        if isinstance(value, str):
            shown = value.lower() if name == "license" else value
        elif isinstance(value, int) and name != "seed":
            shown = f"{value:,}"
        elif isinstance(value, int | float):
            shown = str(value)
        else:
            continue
        assert shown in text, name


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "name"), REQUIRED)
def test_a_missing_fact_is_named_and_nothing_is_written(tmp_path, kind, name):
    facts = changed(kind)
    del facts[name]
    with pytest.raises(InputError, match=rf"facts of a {kind} card: missing: {name}$"):
        write_card(kind, tmp_path, facts)
    assert not list(tmp_path.iterdir())


def test_templates_work_with_the_librarys_own_from_template(tmp_path):
    written = DatasetCard.load(write_card("dataset", tmp_path, FACTS["dataset"]))
    facts = {"repo_id": None, "limits": [], **FACTS["dataset"]}
    made = DatasetCard.from_template(written.data, template_path=str(template_path("dataset")), **facts)
    assert made.content.strip() == written.content.strip()


def test_results_stand_in_the_model_index_with_their_errors(tmp_path):
    entry = front_matter(write_card("model", tmp_path, FACTS["model"]))["model-index"][0]
    assert entry["name"] == "Mess3 38M"
    (result,) = entry["results"]
    assert result["dataset"] == {"name": FACTS["model"]["data"], "type": "custom"}
    assert result["metrics"] == [
        {"type": "test_loss", "value": 0.8123, "name": "Test loss (nats/token)", "args": {"standard_error": 0.00012}},
        {"type": "excess_loss", "value": 0.0011, "name": "Excess | loss (nats/token)"},
    ]


def test_a_table_tells_exact_from_unknown_errors_and_survives_a_bar(tmp_path):
    text = write_card("model", tmp_path, FACTS["model"]).read_text(encoding="utf-8")
    assert "| Test loss | 0.8123 | 0.00012 | nats/token |" in text
    assert "| Excess \\| loss | 0.0011 | not estimated | nats/token |" in text
    assert "| *Optimal loss* | 0.8112 | exact | nats/token |" in text


def test_a_model_without_results_or_floor_says_so(tmp_path):
    path = write_card("model", tmp_path, changed("model", metrics=[], optimal_loss=None))
    text = path.read_text(encoding="utf-8")
    assert "This model was not evaluated." in text
    assert "The distribution of these data is not known" in text
    assert "model-index" not in front_matter(path)


def test_optional_facts_appear_where_they_are_given(tmp_path):
    facts = changed("model", base_model="me/base", repo_id="me/tuned", limits=["Only x = 0.05 was tried."])
    path = write_card("model", tmp_path, facts)
    text = path.read_text(encoding="utf-8")
    assert front_matter(path)["base_model"] == "me/base"
    assert "| Started from | me/base |" in text
    assert 'from_pretrained("me/tuned")' in text
    assert text.endswith("- Only x = 0.05 was tried.\n")


def test_a_given_process_is_not_called_fitted(tmp_path):
    facts = changed("hmm", corpus=None, log_likelihood_train=None, log_likelihood_test=None)
    text = write_card("hmm", tmp_path, changed("hmm")).read_text(encoding="utf-8")
    assert "-4.25000 nats/token" in text
    assert "local optimum" in text
    text = write_card("hmm", tmp_path, {**facts, "entropy_rate_standard_error": 0.0}).read_text(encoding="utf-8")
    assert "a process that its tables define" in text
    assert "4.06250 (exact) nats/token" in text
    assert not re.search("[Ll]og-likelihood, |local optimum|is an estimate", text)


def test_a_data_set_has_a_configuration_for_each_kind_of_columns(tmp_path):
    (tmp_path / "text").mkdir()
    configs = front_matter(write_card("dataset", tmp_path, FACTS["dataset"]))["configs"]
    assert [config["config_name"] for config in configs] == ["default", "oracle"]
    assert configs[1]["data_files"][1] == {"split": "test", "path": "oracle/test-*"}
    configs = front_matter(write_card("text", tmp_path / "text", FACTS["text"]))["configs"]
    assert [config.get("default", False) for config in configs] == [True, False]


def test_numbers_of_numpy_are_numbers(tmp_path):
    metric = {"name": "loss", "value": np.float32(0.5), "standard_error": np.float64(0.25), "unit": "nats/token"}
    path = write_card("model", tmp_path, changed("model", metrics=[metric], tokens=np.int64(7000), optimal_loss=None))
    assert ModelCard.load(path).data.eval_results[0].metric_value == 0.5
    assert "| Tokens trained on | 7,000 |" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "changes", "complaint"),
    [
        ("model", {"lr": 1.0}, r"unknown: lr; expected: base_model, command,"),
        ("model", {"learning_rate": float("nan")}, r"learning_rate is nan, expected a finite number"),
        ("model", {"license": "Apache 2"}, r"license is 'Apache 2', expected an identifier such as apache-2\.0"),
        (
            "model",
            {"optimal_loss": {**FACTS["model"]["optimal_loss"], "value": float("inf")}},
            r"optimal_loss\.value is inf",
        ),
    ],
)
def test_a_fact_that_cannot_be_right_is_refused_by_name(tmp_path, kind, changes, complaint):
    with pytest.raises(InputError, match=complaint):
        write_card(kind, tmp_path, changed(kind, **changes))
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="kind is 'space', expected one of model, hmm, dataset, text"):
        write_card("space", tmp_path, {})
    with pytest.raises(InputError, match="no such folder to write a card into"):
        write_card("hmm", tmp_path / "missing", FACTS["hmm"])


@pytest.mark.thorough
@pytest.mark.parametrize("repo_type", ["model", "dataset"])
def test_what_a_card_tells_readers_to_run_runs_on_what_was_pushed(local_hub, tmp_path, repo_type):
    """Push an HMM as a model and as a data set, then run the cards' own Python elsewhere."""
    from hmm_datasets.hmm import processes

    hmm = processes.mess3(0.15, 0.6)
    hmm.save_pretrained(tmp_path / "mess3")
    code = """
        import json, re, sys
        from hmm_datasets.hub.kinds.push import PushSettings, push_path
        from huggingface_hub import DatasetCard, ModelCard
        folder, repo_type = sys.argv[1:]
        repo_id = f"tester/card-{repo_type}"
        push_path(folder, repo_id, PushSettings(repo_type=repo_type), say=lambda line: None)
        card = (DatasetCard if repo_type == "dataset" else ModelCard).load(repo_id)
        names = {}
        for block in re.findall(r"```python\\n(.*?)```", card.text, re.DOTALL):
            exec(block, names)
        if repo_type == "dataset":
            rows = [names["sequences"][:4]["input_ids"], [row["input_ids"] for row in names["stream"].take(4)]]
            print(json.dumps([*rows, names["optimum"].shape, names["known"].column_names]))
        else:
            print(json.dumps([names["tokens"].tolist(), names["sequences"][10**9]["input_ids"].tolist()]))
    """
    found = local_hub.child(code, tmp_path / "home", tmp_path / "mess3", repo_type)
    if repo_type == "dataset":
        stored, streamed, shape, columns = found
        assert [row[1:] for row in stored] == [row[1:] for row in streamed] == hmm.sample(4, 100).tolist()
        assert shape == [4, 101, 3]
        assert {"states", "beliefs", "log_probs", "entropies"} <= set(columns)
    else:
        assert found[0] == hmm.sample(4, 32, seed=0).tolist()
        assert found[1][1:] == hmm.sample(1, 32, seed=0, first=10**9)[0].tolist()


def test_no_fact_of_a_card_is_html(tmp_path):
    script = "<script>alert(1)</script>"
    odd = f"a {script} <IMG src=x onerror=y> `<s>` \\`{script} | `b | {script}` <!-- <https://a.b/c> 1 < 2"
    write_card("model", tmp_path, changed("model", data=f"{odd}\n\n```\n{script}\n```\n{script}"))
    text = (tmp_path / "README.md").read_text()
    assert text.count("&lt;script>alert(1)&lt;/script>") == 4
    assert f"`b | {script}`" in text  # in code
    assert "`<s>`" in text
    assert "<IMG" not in text.partition("\n---\n")[2]
    assert "<!--" not in text.split("\n---\n")[1]
    assert "<https://a.b/c> 1 < 2" in text


HOSTILE = [
    "``` `\n<script>x</script>",
    "x\n```\n\n<script>x</script>",
    "x\n~~~ `\n<script>x</script>\n~~~",
    "1. ```\n<script>x</script>",
    "<script\n>x</script>",
    "`a\n\n<script>x</script>\n\n`",
    "``x`<script>x</script>` ``",
    "\x1b]0;x\x07<script>x</script>",
    "a | b\n|---|\n| <script>x</script> |",
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTILE)
def test_no_fence_in_a_fact_lets_html_through_or_swallows_what_follows(tmp_path, name):
    facts = {"name": name, "summary": name, "data": name, "command": f"hmm-datasets '{name}'", "precision": name}
    stage = {"stage": name, "data": name, "tokens": 1}
    facts |= {"details": [{"name": name, "value": name}], "stages": [stage], "limits": [name]}
    write_card("model", tmp_path, changed("model", **facts))
    text = (tmp_path / "README.md").read_text().partition("\n---\n")[2]
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    kinds = [kind.type for token in tokens for kind in (token, *(token.children or ()))]
    assert not {"html_block", "html_inline"} & set(kinds)
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert {"Data", "Results", "Limits"} <= set(headings)
    assert "\x1b" not in text

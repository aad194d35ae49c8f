"""Cards contain all the facts they were given, in a form that the classes of huggingface_hub can read."""

import copy
import re

import jinja2.meta
import numpy as np
import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard

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
        "floor": {"name": "Bayes-optimal loss", "value": 0.8112, "standard_error": 0, "unit": "nats/token"},
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
        "hmm": "Mess3 (x = 0.05, a = 0.85)",
        "seed": 17,
        "num_sequences": 10_000,
        "length": 100,
        "format": 1,
        "hash": "0123456789abcdef0123456789abcdef",
        "license": "apache-2.0",
    },
}
CARD = {"model": ModelCard, "hmm": ModelCard, "dataset": DatasetCard}
KINDS = sorted(FACTS)


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


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in FACTS[kind]])
def test_a_missing_fact_is_named_and_nothing_is_written(tmp_path, kind, name):
    facts = changed(kind)
    del facts[name]
    with pytest.raises(InputError, match=rf"facts of a {kind} card: missing: {name}$"):
        write_card(kind, tmp_path, facts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_asks_for_the_facts_that_are_checked_and_no_others(kind):
    from hmm_datasets.hub.cards import _TYPES

    source = template_path(kind).read_text(encoding="utf-8")
    asked = jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(source))
    front_matter_only = {"license", "datasets"}
    assert asked - {"card_data"} == set(_TYPES[kind]) - front_matter_only


def test_templates_work_with_the_librarys_own_from_template(tmp_path):
    from hmm_datasets.hub.cards import _OPTIONAL

    written = DatasetCard.load(write_card("dataset", tmp_path, FACTS["dataset"]))
    facts = {**_OPTIONAL["dataset"], **FACTS["dataset"]}
    made = DatasetCard.from_template(written.data, template_path=str(template_path("dataset")), **facts)
    assert made.content.strip() == written.content.strip()


def test_results_stand_in_the_model_index_with_their_errors(tmp_path):
    (tmp_path / "own data").mkdir()
    entry = front_matter(write_card("model", tmp_path, changed("model", datasets=["me/mess3"])))["model-index"][0]
    assert entry["name"] == "Mess3 38M"
    (result,) = entry["results"]
    assert result["dataset"] == {"name": "me/mess3", "type": "me/mess3"}
    assert result["metrics"] == [
        {"type": "test_loss", "value": 0.8123, "name": "Test loss (nats/token)", "args": {"standard_error": 0.00012}},
        {"type": "excess_loss", "value": 0.0011, "name": "Excess | loss (nats/token)"},
    ]
    own = ModelCard.load(write_card("model", tmp_path / "own data", FACTS["model"])).data.eval_results[0]
    assert (own.dataset_type, own.dataset_name) == ("custom", FACTS["model"]["data"])


def test_a_table_tells_exact_from_unknown_errors_and_survives_a_bar(tmp_path):
    text = write_card("model", tmp_path, FACTS["model"]).read_text(encoding="utf-8")
    assert "| Test loss | 0.8123 | 0.00012 | nats/token |" in text
    assert "| Excess \\| loss | 0.0011 | not estimated | nats/token |" in text
    assert "| *floor:* Bayes-optimal loss | 0.8112 | exact | nats/token |" in text


def test_a_model_without_results_or_floor_says_so(tmp_path):
    path = write_card("model", tmp_path, changed("model", metrics=[], floor=None))
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
    assert "a process with given tables" in text
    assert "4.06250 (exact) nats/token" in text
    assert not re.search("[Ll]og-likelihood, |local optimum|is an estimate", text)


@pytest.mark.parametrize(
    ("num_sequences", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (10_000, "10K<n<100K"),
        (10**12 - 1, "100B<n<1T"),
        (None, "n>1T"),
    ],
)
def test_the_size_of_a_data_set_is_in_the_hubs_words(tmp_path, num_sequences, category):
    path = write_card("dataset", tmp_path, changed("dataset", num_sequences=num_sequences))
    assert front_matter(path)["size_categories"] == [category]


def test_a_sample_becomes_a_configuration_of_the_data_set(tmp_path):
    path = write_card("dataset", tmp_path, changed("dataset", sample={"path": "sample.parquet", "sequences": 1000}))
    assert front_matter(path)["configs"] == [{"config_name": "sample", "data_files": "sample.parquet"}]
    assert "`sample.parquet` has the first 1,000 sequences" in path.read_text(encoding="utf-8")


def test_numbers_of_numpy_are_numbers(tmp_path):
    metric = {"name": "loss", "value": np.float32(0.5), "standard_error": np.float64(0.25), "unit": "nats/token"}
    path = write_card("model", tmp_path, changed("model", metrics=[metric], tokens=np.int64(7000), floor=None))
    assert ModelCard.load(path).data.eval_results[0].metric_value == 0.5
    assert "| Tokens trained on | 7,000 |" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "changes", "complaint"),
    [
        ("model", {"lr": 1.0}, r"unknown: lr; expected: name, summary,"),
        ("model", {"tokens": 5e9}, r"tokens is 5000000000\.0, expected int"),
        ("model", {"tokens": True}, r"tokens is True, expected int"),
        ("model", {"parameters": -1}, r"parameters is -1, expected 0 or more"),
        ("model", {"learning_rate": float("nan")}, r"learning_rate is nan, expected a finite number"),
        ("model", {"summary": "  "}, r"summary is empty"),
        ("model", {"license": "Apache 2"}, r"license is 'Apache 2', expected an identifier such as apache-2\.0"),
        ("model", {"metrics": [{"name": "loss"}]}, r"metrics\[0\]: missing: value"),
        ("model", {"metrics": ["loss"]}, r"metrics\[0\] is 'loss', expected dict"),
        ("model", {"floor": {**FACTS["model"]["floor"], "value": float("inf")}}, r"floor\.value is inf"),
        ("model", {"limits": [3]}, r"limits\[0\] is 3, expected str"),
        ("hmm", {"log_likelihood_test": 4.25}, r"log_likelihood_test is 4\.25, expected 0 or less; change the sign"),
        ("hmm", {"entropy_rate": None}, r"entropy_rate is None, expected float"),
        ("dataset", {"sample": {"path": "a.parquet"}}, r"sample: missing: sequences"),
    ],
)
def test_a_fact_that_cannot_be_right_is_refused_by_name(tmp_path, kind, changes, complaint):
    with pytest.raises(InputError, match=complaint):
        write_card(kind, tmp_path, changed(kind, **changes))
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="kind is 'space', expected one of model, hmm, dataset"):
        write_card("space", tmp_path, {})
    with pytest.raises(InputError, match="no such folder to write a card into"):
        write_card("hmm", tmp_path / "missing", FACTS["hmm"])


@pytest.mark.launch
@pytest.mark.parametrize("kind", ["hmm", "dataset"])
def test_what_a_card_tells_readers_to_run_runs_on_what_was_pushed(local_hub, tmp_path, kind):
    """Push an HMM with its card, then run the card's own Python elsewhere."""
    from hmm_datasets.hmm import processes

    folder, repo_id, repo_type = tmp_path / "run", f"tester/card-{kind}", "dataset" if kind == "dataset" else "model"
    hmm = processes.mess3()
    hmm.save_pretrained(folder)
    more = {"hash": hmm.fingerprint()} if kind == "dataset" else {}
    write_card(kind, folder, changed(kind, repo_id=repo_id, **more))
    code = """
        import json, re, sys
        from pathlib import Path
        from hmm_datasets.hub import push_folder
        from huggingface_hub import DatasetCard, ModelCard
        folder, repo_id, repo_type = sys.argv[1:]
        push_folder(folder, repo_id, repo_type=repo_type)
        card = (DatasetCard if repo_type == "dataset" else ModelCard).load(repo_id)
        names = {}
        for block in re.findall(r"```python\\n(.*?)```", card.text, re.DOTALL):
            exec(block, names)
        rows = [row["input_ids"] for row in names["dataset"].take(4)] if "dataset" in names else None
        far = names["sequences"][10**9]["input_ids"].tolist() if "sequences" in names else None
        print(json.dumps([names["tokens"].tolist(), rows, far]))
    """
    tokens, rows, far = local_hub.child(code, tmp_path / "home", folder, repo_id, repo_type)
    if kind == "dataset":
        assert tokens == [row[1:] for row in rows] == hmm.sample(4, 100, seed=17).tolist()
    else:
        assert tokens == hmm.sample(4, 32, seed=0).tolist()
        assert far[1:] == hmm.sample(1, 32, seed=0, first=10**9)[0].tolist()

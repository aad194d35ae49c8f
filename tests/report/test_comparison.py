import json
import re
from pathlib import Path
from unittest.mock import Mock

import made_up
import numpy as np
import pytest
from matplotlib.figure import Figure

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.comparison import compare_reports, run_names
from hmm_datasets.evaluation.comparison_report import comparison_text, write_comparison
from hmm_datasets.report.comparison_plots import plot_training_of_runs


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    """Three runs on the same items."""
    root = tmp_path_factory.mktemp("runs")
    settings = {"a": (0.05, 1.2, 0.6, 1.0), "b": (0.03, 1.15, 0.7, 1.2), "c": (0.0501, 1.2, 0.3, 0.9)}
    return [
        made_up.write(
            root / name / "evaluation",
            *made_up.report(
                name, optimum={"gap": gap}, text={"bits": bits}, core={"accuracy": accuracy}, training={"speed": speed}
            ),
        )
        for name, (gap, bits, accuracy, speed) in settings.items()
    ]


@pytest.fixture(scope="module")
def found(folders) -> dict:
    return compare_reports(folders)


def differences(found: dict, task: str) -> list[dict]:
    return [row["difference"] for row in found["tasks"][task]["rows"]]


def changed(folders, tmp_path, task, change, items=None) -> list[Path]:
    """The first run, and a changed copy of the second."""
    report = json.loads((folders[1] / "report.json").read_text())
    rows = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (folders[1] / "items").iterdir()
    }
    report[task] |= change
    if items is not None:
        rows[task] = [items(row) for row in rows[task]]
    return [folders[0], made_up.write(tmp_path / "changed", report, rows)]


# Differences


def test_a_difference_is_that_of_the_runs_own_results(found):
    for task in ("optimum", "text", "core"):
        first, *others = found["tasks"][task]["rows"]
        assert first["difference"] is None
        for row in others:
            assert row["difference"]["value"] == pytest.approx(row["value"] - first["value"], abs=1e-12)
            low, high = row["difference"]["low"], row["difference"]["high"]
            assert row["difference"]["value"] == 0 if low is None else low <= row["difference"]["value"] <= high
            assert row["unpaired"] is None


@pytest.mark.parametrize(
    ("task", "figure", "size"), [("optimum", lambda row: row["nats"] - row["floor_nats"], "tokens"),
                                 ("text", lambda row: row["nats"] / np.log(2), "bytes")]
)  # fmt: skip
def test_a_paired_interval_equals_a_brute_force_bootstrap(folders, found, task, figure, size):
    """Over sequences or documents, with other random numbers, up to the noise of 2,000 resamples."""
    rows = [
        [json.loads(line) for line in (folder / "items" / f"{task}.jsonl").read_text().splitlines()]
        for folder in folders[:2]
    ]
    first, second = ([figure(row) for row in run] for run in rows)
    sizes, generator, values = [row[size] for row in rows[0]], np.random.default_rng(99), []
    for _ in range(4000):
        drawn = generator.integers(len(sizes), size=len(sizes))
        values.append(sum(second[k] - first[k] for k in drawn) / sum(sizes[k] for k in drawn))
    low, high = np.quantile(values, [0.025, 0.975])
    told = differences(found, task)[1]
    assert told["low"] == pytest.approx(low, abs=0.1 * (high - low))
    assert told["high"] == pytest.approx(high, abs=0.1 * (high - low))


@pytest.mark.outside(
    "https://github.com/EleutherAI/lm-evaluation-harness/issues/3831",
    "a paired test of two models on the same questions, for one that ignores the pairs",
    "`compare` gives the difference on the same questions with a paired interval",
)
def test_the_interval_of_a_score_resamples_items_within_each_task(tmp_path):
    """Changes are the same in every task, so resampling all items together would widen the interval by 3 ** 0.5."""
    report, items = made_up.core()
    runs = []
    for name, is_right in (("first", lambda k: k % 5 == 0), ("second", lambda k: k % 2 == 0)):
        rows = [{**row, "correct": is_right(row["item"])} for row in items]
        runs.append(made_up.write(tmp_path / name, {**made_up.provenance(name), "core": report}, {"core": rows}))
    change = np.array([(k % 2 == 0) - int(k % 5 == 0) for k in range(50)])
    generator, values = np.random.default_rng(99), []
    for _ in range(4000):
        drawn = {baseline: generator.integers(50, size=50) for baseline in made_up.TASKS.values()}
        values.append(np.mean([change[indices].mean() / (1 - baseline) for baseline, indices in drawn.items()]))
    low, high = np.quantile(values, [0.025, 0.975])
    told = differences(compare_reports(runs), "core")[1]
    assert told["value"] == pytest.approx(change.mean() * np.mean([1 / (1 - b) for b in made_up.TASKS.values()]))
    assert told["low"] == pytest.approx(low, abs=0.1 * (high - low))
    assert told["high"] == pytest.approx(high, abs=0.1 * (high - low))


def test_a_run_compared_with_itself_has_no_difference(folders, tmp_path):
    copy = changed(folders, tmp_path, "optimum", {})
    found = compare_reports([folders[1], copy[1]])
    for task in ("optimum", "text"):
        # Equal everywhere, which bounds no difference that is rare.
        assert differences(found, task)[1] == {"value": 0.0, "low": None, "high": None}
    # Other questions might be answered differently.
    assert differences(found, "core")[1] == {
        "value": 0.0,
        "low": pytest.approx(-0.046, abs=1e-3),
        "high": pytest.approx(0.046, abs=1e-3),
    }


@pytest.mark.parametrize(
    ("task", "change", "items", "told"),
    [
        ("optimum", {"fingerprint": "other"}, None, "fingerprint is other, not optimum-of-3-states"),
        ("optimum", {"seed": 7}, None, "seed is 7, not 0"),
        ("optimum", {"first": 5}, None, "first is 5"),
        ("optimum", {"length": 99}, None, "length is 99, not 24"),
        ("optimum", {}, lambda row: {**row, "tokens": 23}, "their tokens differ"),
        ("text", {"bytes": 1}, None, "bytes is 1"),
        ("text", {}, lambda row: {**row, "bytes": row["bytes"] + (-1) ** row["document"]}, "their bytes differ"),
        ("text", {"window": 16}, None, "window is 16, not "),
        ("text", {"stride": 3}, None, "stride is 3, not "),
        ("text", {"unit": "window"}, None, "evaluate both with the text itself as --targets"),
        pytest.param(
            *("core", {"prompts_cut": 4}, None, "prompts_cut is 4, not "),
            marks=pytest.mark.outside(
                "https://github.com/EleutherAI/lm-evaluation-harness/issues/3421",
                "compare models with different context windows although long prompts are cut",
                "`compare` gives no difference where another number of prompts was cut, and names the numbers",
            ),
        ),
        ("core", {"tasks": {}}, None, "tasks none, not hellaswag, lambada_openai, copa"),
    ],
)
def test_items_of_other_documents_are_refused(folders, tmp_path, task, change, items, told):
    found = compare_reports(changed(folders, tmp_path, task, change, items))
    row = found["tasks"][task]["rows"][1]
    assert row["difference"] is None
    assert told in row["unpaired"]
    assert row["unpaired"].startswith("measured on other items")
    assert f"changed: no difference, {row['unpaired']}" in comparison_text(found)


def test_every_difference_that_is_not_given_has_a_reason(found):
    for task, results in found["tasks"].items():
        for row in results["rows"][1:]:
            assert (row["difference"] is None) == bool(row["unpaired"])
            if task not in ("optimum", "text", "chat", "core"):
                assert row["unpaired"] == f"{task} has no items that can be resampled"


def test_questions_of_another_file_are_refused(folders, tmp_path):
    tasks = json.loads((folders[1] / "report.json").read_text())["core"]["tasks"]
    tasks["copa"]["sha256"] = "f" * 64
    found = compare_reports(changed(folders, tmp_path, "core", {"tasks": tasks}))
    assert "copa: sha256 is ffff" in found["tasks"]["core"]["rows"][1]["unpaired"]


def test_a_task_that_only_some_runs_have_is_left_out_with_a_line(folders, tmp_path):
    report, items = made_up.report()
    del report["core"], report["training"]
    found = compare_reports([folders[0], made_up.write(tmp_path / "less", report, items)])
    assert "core" not in found["tasks"]
    less = found["runs"][1]["name"]
    assert found["left_out"] == [f"core: not measured in {less}", f"training: not measured in {less}"]
    assert less.endswith("/less")
    assert f"core: not measured in {less}" in comparison_text(found)


def test_names_are_the_paths_in_the_folder_that_has_all_runs():
    def names(*paths):
        return run_names([Path(path) for path in paths])

    assert names("out/a", "out/b") == ["a", "b"]
    assert names("out/a/evaluation", "out/b/evaluation") == ["a", "b"]
    assert names("x/a/e1", "y/a/e1", "y/a/e2") == ["x/a/e1", "y/a/e1", "y/a/e2"]
    assert names("/p", "/q/p") == ["p", "q/p"]


@pytest.mark.parametrize(
    ("choose", "told"),
    [
        (lambda folders, _: folders[:1], "1 run to compare"),
        (lambda folders, _: [folders[0], folders[0]], "give each run once"),
        (lambda folders, _: [folders[0], folders[0].parent], "give each run once"),
        (lambda folders, empty: [folders[0], empty], "report.json: no such file"),
    ],
)
def test_bad_runs_are_refused_in_one_line(folders, tmp_path, choose, told):
    with pytest.raises(InputError, match=told):
        compare_reports(choose(folders, tmp_path))


# Files


@pytest.fixture(scope="module")
def written(folders, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    found = compare_reports(folders)
    write_comparison(found, folder)
    return folder


@pytest.mark.thorough
def test_a_comparison_writes_numbers_a_page_and_figures(written, found):
    told = json.loads((written / "comparison.json").read_text())
    assert told["tasks"]["optimum"] == found["tasks"]["optimum"]
    names = {"positions", "training"}
    assert {path.name for path in (written / "plots").iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "pdf")
    }
    page = (written / "comparison.html").read_text()
    assert page.count("<img ") == len(names)
    assert re.search(r"b has 0\.0\d+ less than a on the same items", page)


def test_a_picture_of_a_comparison_that_fails_costs_no_result(found, tmp_path, monkeypatch):
    monkeypatch.setattr("hmm_datasets.report.comparison_plots.draw_comparison", Mock(side_effect=ValueError("RGBA")))
    with pytest.raises(ValueError, match="RGBA"):
        write_comparison(found, tmp_path)
    assert json.loads((tmp_path / "comparison.json").read_text())["tasks"] == found["tasks"]
    assert {path.name for path in tmp_path.iterdir()} == {"comparison.json", "digests.json"}


def test_a_score_of_a_subset_is_named_so(found):
    assert "core: CORE subset (3 of 22 tasks)" in comparison_text(found)


def test_the_text_compares_every_run_with_the_first(found):
    lines = comparison_text(found).splitlines()
    header = lines[1].split("  ")
    assert "minus a" in [cell.strip() for cell in header]
    row = found["tasks"]["optimum"]["rows"][1]
    line = next(line for line in lines if line.startswith("b "))
    assert f"{row['value']:.4f}" in line
    assert f"{row['difference']['value']:+.4f}" in line


def kept_figure(monkeypatch, plot, data) -> Figure:
    kept = []
    monkeypatch.setattr("hmm_datasets.report.plots.save_figure", lambda figure, _: kept.append(figure))
    plot(data, "unused.png")
    return kept[0]


@pytest.mark.outside(
    "https://github.com/matplotlib/matplotlib/issues/8045",
    "a logarithmic axis for values of which some are zero",
    "the axis of divergences ends at 1e-6 nats, where rounding begins, and is linear if all are below",
)
def test_a_run_that_becomes_exact_does_not_compress_the_curves_of_the_others(monkeypatch):
    exact = {"tokens": [10, 20, 40], "kl_bayes": [0.3, 1e-17, 0.0]}
    other = {"tokens": [10, 20, 40], "kl_bayes": [0.3, 0.2, 0.1]}
    axes = kept_figure(monkeypatch, plot_training_of_runs, {"exact": exact, "other": other}).axes[0]
    assert (axes.get_yscale(), axes.get_ylim()[0]) == ("log", 1e-6)
    nothing = {"exact": exact | {"kl_bayes": [0.0, 0.0, 0.0]}}
    assert kept_figure(monkeypatch, plot_training_of_runs, nothing).axes[0].get_yscale() == "linear"

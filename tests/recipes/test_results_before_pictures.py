"""A picture that cannot be drawn costs no result: every experiment writes its numbers before it draws."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from experiments import load
from matplotlib.figure import Figure
from matplotlib.image import imread
from published import Finding, Paper, write_result
from report_page import write_report_page
from word_probes import all_words

from hmm_datasets.files import read_json
from hmm_datasets.hmm.families import load_source
from hmm_datasets.report.plots import draw_points, save_figure
from hmm_datasets.report.tables import Table

ROOT = Path(__file__).resolve().parents[2]
MODULES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.glob("recipes/**/*.py"))}
SHARED = [ROOT / "recipes" / "common", ROOT / "hmm_datasets" / "report"]
WRITERS = {"write_json", "write_jsonl", "atomic_file", "write_result"}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def calls(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each call, except in a lambda, which is called later, and where an error is handled."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name):
            yield child.lineno, child.func.id
        if not isinstance(child, ast.Lambda | ast.ExceptHandler):
            yield from calls(child)


def closure(trees: list[ast.AST], names: set[str]) -> set[str]:
    """The names, and the functions that call one of them, at any distance."""
    called = {function.name: {name for _, name in calls(function)} for tree in trees for function in functions(tree)}
    while True:
        more = names | {function for function, inside in called.items() if inside & names}
        if more == names:
            return names
        names = more


@pytest.mark.thorough
def test_no_function_of_an_experiment_draws_before_it_writes():
    shared = [ast.parse(path.read_text()) for folder in SHARED for path in folder.glob("*.py")]
    checked, early = 0, []
    for folder in {path.parent for path in MODULES}:
        trees = [tree for path, tree in MODULES.items() if path.parent == folder]
        drawers, writers = closure([*shared, *trees], {"save_figure", "paper_figure"}), closure(trees, set(WRITERS))
        for function in (function for tree in trees for function in functions(tree)):
            if function.name == "write_result":  # the pictures come as functions, and a test below calls it
                continue
            order = sorted(calls(function))
            drawn = [line for line, name in order if name in drawers - writers]
            written = [line for line, name in order if name in writers]
            checked += bool(drawn)
            if drawn and written and min(drawn) < max(written):
                early.append(f"{folder.name}: {function.name} draws in line {min(drawn)}, writes in {max(written)}")
    assert not early
    assert checked > 10


def test_a_picture_that_fails_leaves_the_result_and_its_table(tmp_path, capsys):
    def broken(path: Path) -> None:
        raise ValueError(f"{path.name} cannot be drawn")

    paper, findings = Paper("On coins", "2001.00001", "figure 1"), [Finding("accuracy", 0.5)]
    with pytest.raises(ValueError, match=r"a\.png cannot be drawn"):
        write_result(
            tmp_path / "new", paper, findings, protocol="One.", tokens=1, seconds=1, pictures={"a.png": broken}
        )
    assert read_json(tmp_path / "new" / "result.json")["pictures"] == ["a.png"]
    assert "| accuracy | 0.5 |" in (tmp_path / "new" / "result.md").read_text()
    assert "accuracy" in capsys.readouterr().out
    table = Table("Accuracies", ["kind", "accuracy"], [["mean", "0.5"]])
    with pytest.raises(ValueError, match=r"b\.png cannot be drawn"):
        write_report_page(tmp_path, [table], {"accuracy": 0.5}, {"b.png": broken}, sections=["# More"])
    assert read_json(tmp_path / "report.json") == {"accuracy": 0.5}
    expected = "# Accuracies\n\n| kind | accuracy |\n|---|---:|\n| mean | 0.5 |\n\n# More\n\n![b](b.png)\n"
    assert (tmp_path / "report.md").read_text() == expected
    assert "Accuracies" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("call", ["mess3(x=0.05, a=0.85)", "bloch_walk()", "frdn()", "moon()"])
def test_the_points_of_each_shipped_process_are_drawn(tmp_path, call):
    """Of some the coordinate that chooses the color is rounded to a little more than 1."""
    words = all_words(load_source(f"process:{call}"), 5)
    row = {"process": "it", "architecture": "gru", "best_of_order_3": 0.1}
    row |= {"rmse": 0.1, "markov_rmse": 0.2, "untrained_rmse": 0.3}
    panels = {"it": {"words": words, "probed": {"gru": words.beliefs}}}
    load("generalized_processes").draw([row], panels, tmp_path / "points.png")
    assert (tmp_path / "points.png").stat().st_size > 10_000


@pytest.mark.outside(
    "https://github.com/facebookresearch/detectron2/pull/4850",
    "draw with a colour that rounding has put a little above 1",
    "colours that are computed are clipped in one place, through which all go",
)
def test_colors_outside_of_their_range_by_rounding_are_clipped():
    axes = Figure().subplots()
    draw_points(axes, np.zeros((2, 2)), np.array([[-2e-17, 0.5, 1 + 1e-15], [0, 0, 0]]))
    assert axes.collections[0].get_facecolors()[0].tolist() == [0, 0.5, 1, 1]


@pytest.mark.thorough
def test_colors_that_are_computed_go_through_one_function():
    """`scatter` with an array of colors, and no color map, is called by `draw_points` alone."""
    found = []
    for path in [*MODULES, *(ROOT / "hmm_datasets").glob("**/*.py")]:
        for node in ast.walk(MODULES.get(path) or ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "scatter":
                names = {keyword.arg for keyword in node.keywords}
                if path.name != "plots.py" and ("c" in names or None in names) and "cmap" not in names:
                    found.append(f"{path.name}: {node.lineno}")
    assert not found


@pytest.mark.thorough
def test_no_legend_lies_over_the_data():
    """A legend is outside of the axes: of the figure, or with an anchor."""
    over = []
    for path in [*MODULES, *(ROOT / "hmm_datasets").glob("**/*.py")]:
        for node in ast.walk(MODULES.get(path) or ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "legend":
                names = {keyword.arg for keyword in node.keywords}
                if ast.unparse(node.func.value) != "figure" and "bbox_to_anchor" not in names:
                    over.append(f"{path.name}: {node.lineno}")
    assert not over


@pytest.mark.parametrize(("parts", "panels"), [((), 0), (("decoding",), 1), (("unmasking",), 1), (None, 2)])
def test_the_picture_of_samplers_has_a_panel_for_each_part_that_ran(tmp_path, monkeypatch, parts, panels):
    plot = load("samplers", "plot")
    figures: list[Figure] = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: figures.append(figure))
    decoded = [{"name": name, "divergence": 0.1, "lost": 0.2} for name in ("none", "top-k 4")]
    orders = ("random", "left to right", "most certain first", "least entropy first")
    written = [
        {"denoiser": denoiser, "order": order, "steps": steps, "divergence": 0.1}
        for denoiser in ("exact", "trained")
        for order in orders
        for steps in (8, 1)
    ]
    results = {"decoding": [decoded], "unmasking": [written], "beams": [[]]}
    monkeypatch.setattr(plot, "TABLES", dict.fromkeys(results, lambda found: Table("", ["rows"], [[str(len(found))]])))
    ran = {name: results[name] for name in results if parts is None or name in (*parts, "beams")}
    plot.write_report(tmp_path, ran, {})
    assert [len(figure.axes) for figure in figures] == ([panels] if panels else [])
    assert ("samplers.png" in (tmp_path / "report.md").read_text()) == bool(panels)
    for axes in (axes for figure in figures for axes in figure.axes):
        assert axes.has_data()


@pytest.mark.thorough
def test_a_legend_wider_than_its_figure_is_not_cut_off(tmp_path):
    def drawn(label: str) -> tuple[int, int]:
        figure = Figure(figsize=(2, 2), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], label=label)
        figure.legend(loc="outside lower center")
        save_figure(figure, tmp_path / "it.png")
        return imread(tmp_path / "it.png").shape[1::-1]

    assert drawn("short") == (600, 600)
    assert drawn("a label that needs more than the two inches of its figure")[0] > 900

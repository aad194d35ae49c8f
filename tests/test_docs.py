"""The documentation works: its Python code, command lines and links, and the build of the site."""

import argparse
import ast
import dataclasses
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from hmm_datasets.cli import build_parsers, main, split
from hmm_datasets.compat.accelerate import read_launcher_flags
from hmm_datasets.hmm import processes
from hmm_datasets.operations.experiments import experiment_names, gallery
from hmm_datasets.operations.launching import launch_config, recipe_command, recipe_names, split_command
from hmm_datasets.operations.stage_inputs import read_command
from hmm_datasets.report.tables import text_table
from hmm_datasets.runtime.settings import settings_from
from hmm_datasets.runtime.shipped import local_or_shipped

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
MAX_NOT_RUN = 3
RUN = ("describe", "sample", "configs", "plan")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language, indentation of a list or a note removed."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/clokep/celery-batches/issues/66",
    "a first example in the documentation that works",
    "the Python code of every page runs from top to bottom in an empty folder",
)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_on_a_page_runs(page, tmp_path, warm_python, child_environment):
    program = "\n".join(blocks(page, "python"))
    result = subprocess.run(
        [warm_python, "-c", program], cwd=tmp_path, env=child_environment, capture_output=True, text=True, timeout=500
    )
    assert result.returncode == 0, result.stderr


FIGURATIVE = re.compile(
    r"\b(go(es)? on|says so|(is|are|was|were) told|pass(es)? over (rows|the rows|them)|nats a token)\b"
)


def test_sentences_say_what_happens_in_the_usual_words():
    """A run continues, skips rows and reports something; a unit is nats per token. Code and pages alike."""
    texts = (
        path for folder in ("hmm_datasets", "recipes", "docs", "model_cards") for path in (ROOT / folder).rglob("*")
    )
    wrong = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in texts
        if path.suffix in (".py", ".md", ".yaml", ".ipynb", ".sbatch", ".pbs")
        for found in FIGURATIVE.finditer(" ".join(path.read_text(encoding="utf-8").split()))
    ]
    assert wrong == []


def test_few_blocks_are_not_run():
    assert sum(len(blocks(page, "python notest")) for page in PAGES) <= MAX_NOT_RUN


def documented() -> dict[str, list[str]]:
    """The command lines of README, pages, READMEs and docstrings of recipes, by the file that has them."""
    files = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "recipes").rglob("README.md"))]
    found = {path: "".join(sh_blocks(path.read_text(encoding="utf-8"))) for path in files}
    for path in sorted((ROOT / "recipes").rglob("*.py")):
        docstring = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").replace("\\\n", " ")
        shown = re.findall(r"^    ((?:hmm-datasets|accelerate launch|python) .*)$", docstring, flags=re.MULTILINE)
        # What is optional stands in brackets, and dots stand for more of its kind.
        found[path] = "\n".join(re.sub(r"[][]|\s\.\.\.", " ", line) for line in shown)
    lines = {
        path.relative_to(ROOT).as_posix(): [line.strip() for line in text.replace("\\\n", " ").splitlines()]
        for path, text in found.items()
    }
    return {path: [one for one in found if one and one[0] != "#"] for path, found in lines.items() if any(found)}


def sh_blocks(text: str) -> list[str]:
    return [code for _, code in re.findall(r"^( *)```sh\n(.*?)^\1```$", text, flags=re.MULTILINE | re.DOTALL)]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/zephiowl/FileSorterX/issues/16",
    "commands in the README whose flags exist",
    "every command line of README, pages and recipes is parsed, planned or run",
)
@pytest.mark.parametrize(("path", "line"), [(path, line) for path, lines in documented().items() for line in lines])
def test_a_command_line_works_as_far_as_it_is_tried_here(path, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, variables = words_of(line)
    if how_tried(words) in ("run", "planned"):
        processes.mess3().save_pretrained("outputs/demo/hmm/hmm")  # what the demo's plans read is there
        assert main(words[1:]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out
    check_words(words, variables)


def words_of(line: str) -> tuple[list[str], dict[str, str]]:
    """The words of a command line, and the variables that it sets in its environment."""
    words = shlex.split(line, comments=True)
    variables = dict(word.split("=", 1) for word in words if re.match(r"^\w+=", word))
    return [word for word in words if not re.match(r"^\w+=", word)], variables


def how_tried(words: list[str]) -> str:
    """`run` if it ends in seconds and reads no file, `planned`, `parsed`, or `named` if it is not ours."""
    if words[0] != "hmm-datasets":
        own = {"accelerate", "sbatch", "qsub"} | ({"python"} if "recipes" in " ".join(words) else set())
        return "parsed" if words[0] in own else "named"
    reads = [word for word in words[2:] if re.match(r"(outputs|my)/|.*\.(txt|npy|jsonl)$", word)]
    if words[1] in RUN and (words[2:3] == ["copy"] or not reads):
        return "planned" if words[1] == "plan" else "run"
    return "run" if words[1:] in (["experiment"], ["--help"], ["--version"]) else "parsed"


def check_words(words: list[str], variables: dict[str, str]) -> None:
    """A command line, and the variables that it sets in its environment."""
    if words[:2] == ["hmm-datasets", "supervise"]:
        before, supervised = split(words[1:])
        check_words(supervised, variables)
        words = [words[0], *before]
    if words[:1] == ["hmm-datasets"]:
        check_command(words[1], words[2:])
    elif words[:2] == ["accelerate", "launch"]:
        check_launch(words[2:])
    elif words[:1] == ["python"] and words[1].startswith("recipes/"):
        check_recipe(words[1], words[2:])
    elif words[:1] == ["python"] and words[1].startswith("tests/"):
        assert (ROOT / words[1]).exists(), words[1]
    elif words[:2] == ["uv", "run"] or words[:4] == ["hf", "jobs", "uv", "run"]:
        script = next(index for index, word in enumerate(words) if word.startswith("recipes/"))
        check_recipe(words[script], words[script + 1 :])
    elif words[:1] == ["sbatch"]:
        files = [word for word in words if word.startswith("recipes/")]
        assert files
        assert (ROOT / files[0]).is_file(), files[0]
        check_recipe(files[1], words[words.index(files[1]) + 1 :])
    elif words[:1] == ["qsub"]:
        assert (ROOT / words[-1]).is_file(), words[-1]
        script, *flags = shlex.split(variables["RUN"])
        check_recipe(script, flags)
    elif words[:1] == ["make"]:
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def check_command(name: str, words: list[str]) -> None:
    """A subcommand of `hmm-datasets`, with its arguments."""
    if name in ("--help", "--version"):
        return
    if name == "experiment" and not words:
        return
    if split_command([name, *words]) is not None:
        name, words = split_command([name, *words])
        recipe = recipe_command(name)
        check_values(name, words)
        if "--launch" in words:
            index = words.index("--launch")
            launch_config(words[index + 1])
            words = without_launcher_flags(words[:index] + words[index + 2 :])
        check_recipe(f"recipes/{recipe.script}", words, positional=recipe.first is not None)
        return
    if name == "preflight" and "--launch" in words:
        index = words.index("--launch")
        launch_config(words[index + 1])
        words = without_launcher_flags(words[:index] + words[index + 2 :])
    values, rest = build_parsers()[0].parse([name, *words])
    arguments = settings_from(values.chosen[1], vars(values))
    if name == "plan":
        check_flags(f"recipes/{recipe_command(arguments.recipe).script}", rest)
        launch = ["--launch", arguments.launch or ("cpu1" if arguments.num_processes is None else "ddp")]
        launch += [] if arguments.num_processes is None else ["--num_processes", str(arguments.num_processes)]
        check_values(arguments.recipe, [*launch, *rest])
    else:
        assert not rest, rest


def check_launch(words: list[str]) -> None:
    """`accelerate launch` of a recipe or of preflight: the launcher's flags, the configuration, the other flags."""
    if "-m" in words:
        script = words.index("-m") + 1
        assert importlib.util.find_spec(words[script]) is not None, words[script]
        check_command(words[script].rpartition(".")[2], words[script + 1 :])
        words, script = words[: script - 1], None
    else:
        script = next(index for index, word in enumerate(words) if word.endswith(".py"))
    other = without_launcher_flags(words[:script])
    config = other.index("--config_file")
    assert (ROOT / other[config + 1]).is_file(), other[config + 1]
    assert other[:config] + other[config + 2 :] == []
    if script is not None:
        check_recipe(words[script], words[script + 1 :])
        name = Path(words[script]).stem
        check_values(name, ["--launch", *words[1:script], *words[script + 1 :]] if words[0] == "--config_file" else [])


@cache
def launcher() -> argparse.ArgumentParser:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser()


def without_launcher_flags(words: list[str]) -> list[str]:
    """The words without the flags of accelerate's launcher."""

    def refuse(message: str) -> NoReturn:
        raise AssertionError(message)

    words = ["1" if word.startswith("$") else word for word in words]  # variables of the shell, such as a rank
    return read_launcher_flags(words, {"--config_file"}, refuse)[1]


def check_recipe(script: str, words: list[str], positional: bool = False) -> None:
    """A recipe, its configuration file and its flags."""
    assert (ROOT / script).is_file(), script
    if positional and words and not words[0].startswith("-"):
        words = words[1:]
    if "--config" in words:
        name = words[words.index("--config") + 1]
        assert name.startswith(("my/", "my.")) or local_or_shipped(name, "recipes").is_file(), name
    check_flags(script, words)


def check_values(name: str, words: list[str]) -> None:
    """The values, and that the batch divides by the processes; settings that a reader makes are not there."""
    if not any(word.startswith(("my/", "my.")) for word in words):
        words = ["0" if word[0] == "$" else word for word in words]
        read_command(name, words)


def check_flags(script: str, words: list[str]) -> None:
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in flags_of(script)]
    assert not unknown, (script, unknown)


@cache
def flags_of(script: str) -> set[str]:
    """The flags of a recipe: those of its dataclasses, or of the parser it makes itself."""
    names = [name for name in recipe_names() if f"recipes/{recipe_command(name).script}" == script]
    kinds = hooks().settings_of_recipes().get(names[0]) if names else None
    if kinds is None:  # a program that reads its arguments itself, or one that experiments start
        text = (ROOT / script).read_text(encoding="utf-8")
        fields = re.findall(r"^    (\w+): .* = (?:field|option)\(|^    (\w+): .*$", text, flags=re.MULTILINE)
        return {"--config", *re.findall(r'"(--[\w-]+)"', text), *(f"--{one or other}" for one, other in fields)}
    fields = [field for kind in kinds for field in dataclasses.fields(kind)]
    return {"--config", *(f"--{field.name}" for field in fields)}


OTHER_PROGRAMS = re.compile(
    r"^(sbatch|uv|python benchmarks/\S+) |--(exclusive|mem=|model_args|apply_chat_template|limit|folder)"
)
"""Code in sentences that has flags of Slurm, uv, benchmarks, lm-evaluation-harness or the local Hub."""


@pytest.mark.outside(
    "https://github.com/jonschlinkert/remarkable/issues/196",
    "no option in the documentation that the command does not have",
    "flags that sentences name are compared with those of commands and settings",
)
def test_flags_that_sentences_name_exist():
    """Flags that are in no block of commands, in which they are checked anyway."""
    flags = {"--config", *(name for action in launcher()._actions for name in action.option_strings)}
    for parser in build_parsers()[1].values():
        for one in (parser, *hooks().subcommands(parser).values()):
            flags |= {name for action in one._actions for name in action.option_strings}
    for kinds in hooks().settings_of_recipes().values():
        flags |= {f"--{field.name}" for kind in kinds for field in dataclasses.fields(kind)}
    unknown = []
    for page, text in PAGES.items():
        prose = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"`([^`]+)`", prose):
            named = [] if OTHER_PROGRAMS.search(code) else re.findall(r"(?<![\w-])--[a-z]\w*", code)
            unknown += [f"{page}: {code}" for flag in named if flag not in flags]
    assert not unknown


@cache
def hooks():
    """The module that computes pages when the site is built."""
    spec = importlib.util.spec_from_file_location("documentation_hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_relative_links_and_pictures_exist():
    missing = []
    for page, text in PAGES.items():
        prose = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            path = target.partition("#")[0]
            missing += [f"{page}: {target}"] if path and not link_leads_somewhere(page, path) else []
    assert not missing


def test_the_navigation_names_every_page_once():
    def pages(part):
        return [part] if isinstance(part, str) else [name for one in part for name in pages(next(iter(one.values())))]

    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    notebooks = {f"notebooks/{path.stem}.md" for path in DOCS.glob("notebooks/*.ipynb")}
    assert sorted(pages(navigation)) == sorted({*PAGES, *hooks().PAGES} | notebooks)


def test_every_public_name_is_in_the_reference():
    import hmm_datasets

    text = "".join(text for page, text in PAGES.items() if page.startswith("reference/"))
    documented = set(re.findall(r"^::: hmm_datasets\.(\w+)$", text, flags=re.MULTILINE))
    assert documented == set(hmm_datasets.__all__) - {"processes"}
    assert "::: hmm_datasets.hmm.processes" in text


@pytest.mark.outside(
    "https://github.com/rjmurillo/ai-agents/issues/3616",
    "every flag described in the documentation",
    "the pages of commands and settings are generated from the parsers and the settings",
)
def test_the_computed_pages_list_every_command_and_setting():
    commands, settings = hooks().commands_page(), hooks().settings_page()
    for name in build_parsers()[1]:
        assert f"### {name} " in commands
    for kinds in hooks().settings_of_recipes().values():
        assert all(f"## {kind.__name__} " in settings for kind in kinds)
    assert "`global_batch_size`" in settings


def test_the_page_of_versions_has_every_dependency_in_the_version_of_the_constraints():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    tested = {canonicalize_name(name): version for name, version in pins}
    rows = re.findall(r"^\| (\S+) \| ([^|]+) \| (\d\S*) \|$", hooks().versions_page(), flags=re.MULTILINE)
    shown = {canonicalize_name(name): version for name, _, version in rows}
    assert {canonicalize_name(Requirement(one).name) for one in project["dependencies"]} <= set(shown)
    assert {name: tested[name] for name in shown} == shown
    assert all(SpecifierSet(accepted).contains(version, prereleases=True) for _, accepted, version in rows)


def test_the_gallery_shows_every_experiment_once_with_its_command_paper_and_picture():
    page = hooks().gallery_page()
    names = re.findall(r"^### .+ \{#(\S+)\}$", page, flags=re.MULTILINE)
    assert sorted(names) == experiment_names()
    for one in gallery():
        assert f"\nhmm-datasets experiment {one.name} " in page or f"\nhmm-datasets experiment {one.name}\n" in page
        link = re.search(r"arxiv.org/abs/([\d.]+)", one.paper)
        assert link is None or f"https://huggingface.co/papers/{link[1]}" in page
    assert page.count("![") == sum(one.picture is not None for one in gallery())
    links = re.findall(r"\]\(([^)#]+)", page)
    assert not [link for link in links if not link_leads_somewhere("explanations/gallery.md", link)]


def test_the_page_of_results_has_the_tables_of_each_experiment_to_which_a_page_links():
    page = hooks().with_tables(PAGES[hooks().RESULTS])
    sections = set(re.findall(r"^### ([\w-]+)$", page, flags=re.MULTILINE))
    assert "README.md" not in page
    assert "| layer 2 | 0.995 | 0.916 | 0.689 | 0.416 |" in page
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) == sections
    others = [hooks().gallery_page(), *PAGES.values()]
    assert {name for text in others for name in re.findall(r"results\.md#([\w-]+)", text)} <= sections | {
        "plans-of-large-runs"
    }
    pictures = re.findall(r"\]\((\S+\.png)\)", page)
    assert len(pictures) == 4
    assert all(link_leads_somewhere(hooks().RESULTS, picture) for picture in pictures)


def link_leads_somewhere(page: str, link: str) -> bool:
    """Whether a link of a page of the site is a remote address, a page or a file."""
    found = os.path.normpath(Path(page).parent / link)
    return (
        bool(re.match(r"\w+:", link))
        or found in {*PAGES, *hooks().PAGES, *hooks().PICTURES}
        # The links of the page of results that leave the folder become tables of the page; others lead nowhere there.
        or ((DOCS / found).is_file() and (not found.startswith("..") or page == hooks().RESULTS))
    )


def test_the_page_on_citing_has_what_the_citation_file_has():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    for field in ("title", "version", "license"):
        assert f"  {field} = {{{citation[field]}}}," in PAGES["reference/citing.md"]


def test_docstrings_of_hugging_face_become_lists_and_links():
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("documentation_docstrings", DOCS / "docstrings.py")
    docstrings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docstrings)
    text = docstrings.to_markdown(
        "Draw.\n\nArgs:\n    hmm ([`HMM`]): what\n        draws.\n    a (`int`), b (`x: y`, *optional*): two\n\n"
        "Returns:\n    [`~hmm_datasets.hub.push.PushResult`]: a\n    thing.\n\n"
        "Raises:\n    [`InputError`]: no\n    such.\n"
    )
    assert "- **`hmm`** ([`HMM`][hmm_datasets.HMM]): what\n    draws." in text
    assert "- **`a`** (`int`), **`b`** (`x: y`, *optional*): two" in text
    assert "\n`PushResult`: a\nthing." in text
    assert "- [`InputError`][hmm_datasets.InputError]: no\n    such." in text


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("mkdocs")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    assert not [path for path in (tmp_path / "site").rglob("*") if path.name == "__pycache__" or path.suffix == ".py"]
    pages = {page: page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html")}
    remote = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=\"?https?://")
    # A card that a notebook prints has fences of its own, inside one block of code.
    shown = {page: re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL) for page, text in pages.items()}
    assert not [page for page, text in shown.items() if remote.search(text) or "```" in text]


def counted() -> str:
    """A table of the files with command lines: how many each has, and how far each of them is tried."""
    kinds = ("run", "planned", "parsed", "named")
    rows = [
        [path, len(lines), *(sum(how_tried(words_of(line)[0]) == kind for line in lines) for kind in kinds)]
        for path, lines in documented().items()
    ]
    total = ["all", *(sum(row[column] for row in rows) for column in range(1, 2 + len(kinds)))]
    return text_table(["file", "found", *kinds], [*rows, total])


if __name__ == "__main__":
    print(counted())

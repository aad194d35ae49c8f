"""Pages that are generated when the site is built, so that nothing on them is written twice."""

import ast
import dataclasses
import functools
import inspect
import re
import tomllib
import types
import typing
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {
    "assets/loss.png": "recipes/demo/loss.png",
    "assets/training.png": "recipes/experiments/icl_transition/training.png",
    "assets/simplex.png": "recipes/experiments/belief_geometry/simplex.png",
    "assets/frontier.png": "recipes/experiments/known_optimum/frontier.png",
    "assets/objectives.png": "recipes/experiments/objectives/objectives.png",
    "assets/reward_frontier.png": "recipes/experiments/frontier/frontier.png",
    "assets/samplers.png": "recipes/experiments/samplers/samplers.png",
    "assets/factored_beliefs.png": "recipes/experiments/factored_beliefs/factored_beliefs.png",
    "assets/phases.png": "recipes/experiments/tinystories_hmm/phases.png",
    "assets/leaky.png": "recipes/experiments/leaky_tokenizer/leaky.png",
    "assets/token_price.png": "recipes/experiments/token_price/token_price.png",
    "assets/token_price_windows.png": "recipes/experiments/token_price/windows.png",
    "assets/scaling.png": "recipes/experiments/scaling/scaling.png",
    "assets/scaling_fits.png": "recipes/experiments/scaling/fits.png",
    "assets/tr1.png": "recipes/experiments/tr1/loss.png",
    "assets/along.png": "recipes/experiments/zac_gpt/along.png",
    "assets/wordplay.png": "recipes/experiments/wordplay/loss.png",
    "assets/icll.png": "recipes/experiments/icll/icll.png",
    "assets/belief_layers.png": "recipes/experiments/belief_geometry/beliefs.png",
    "assets/nonergodic.png": "recipes/experiments/nonergodic/excess.png",
    "assets/constrained_beliefs.png": "recipes/experiments/constrained_beliefs/constrained_beliefs.png",
    "assets/generalized_processes.png": "recipes/experiments/generalized_processes/generalized_processes.png",
    "assets/llm_on_hmms.png": "recipes/experiments/llm_on_hmms/accuracy.png",
    "assets/ginc.png": "recipes/experiments/ginc/accuracy.png",
    "assets/smollm2.png": "recipes/experiments/llm_on_hmms/smollm2.png",
    "assets/architectures.png": "recipes/experiments/architectures/architectures.png",
    "assets/four_phases.png": "recipes/experiments/four_phases/four_phases.png",
    "assets/entropy_errors.png": "recipes/experiments/wind_tunnels/entropy_errors.png",
    "assets/after_pretraining.png": "recipes/experiments/after_pretraining/after_pretraining.png",
    "assets/in_context.png": "recipes/experiments/icl_transition/in_context.png",
    "assets/quantization.png": "recipes/experiments/quantization/quantization.png",
}
"""Figures that recipes drew, by their path in the site."""


def on_files(files, config):
    """Add the generated pages and the figures of recipes to the files of docs/."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    for name, source in PICTURES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Remove the marks of examples that the tests do not run, and add the tables of experiments to their results."""
    if page.file.src_uri == RESULTS:
        markdown = with_tables(markdown)
    return markdown.replace("```python notest", "```python")


def commands_page() -> str:
    """Every subcommand of `hmm-datasets` with its help; recipes with their docstrings."""
    from hmm_datasets.cli import build_parsers
    from hmm_datasets.operations.experiments import gallery
    from hmm_datasets.operations.launching import recipe_command, recipe_names
    from hmm_datasets.runtime.recipe_commands import RECIPE_COMMANDS

    parts = [
        "# Commands\n",
        "All commands and their arguments. The page is generated from `--help`. "
        "Flags may be spelled with hyphens or with underscores.\n",
        "## Recipes\n",
        "A recipe takes `--config FILE.yaml` and flags that override the file: its [settings](settings.md). With "
        "`--launch NAME` it runs on several processes (see [many GPUs and machines](../how_to/scaling.md)).\n",
        "| command | what it does |\n|---|---|",
        *(f"| [`{name}`](#{anchor(name)}) | {recipe.summary} |" for name, recipe in RECIPE_COMMANDS.items()),
        "\n## Experiments\n",
        "An experiment is started by `hmm-datasets experiment NAME`, with a file and flags as a recipe. The first of "
        "its [settings](settings.md) needs no flag.\n",
        "| experiment | what it shows | paper | time on two cores |\n|---|---|---|---|",
        *(f"| [`{one.name}`](#{one.name}) | {one.summary} | {one.paper} | {one.time} |" for one in gallery()),
        "\n## Tools\n",
        "| command | what it does |\n|---|---|",
    ]
    tools = {name: sub for name, sub in build_parsers()[1].items() if name not in RECIPE_COMMANDS}
    parts += [f"| [`{name}`](#{anchor(name)}) | {sentence(sub.description)} |" for name, sub in tools.items()]
    parts += ["\n## Each recipe and experiment\n"]
    for name in recipe_names():
        script = ROOT / "recipes" / recipe_command(name).script
        text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
        settings = "" if name not in settings_of_recipes() else f"\n\n[Settings](settings.md#{anchor(name)})."
        parts += [f"### {name} {{#{anchor(name)}}}\n", f"{as_markdown(text)}{settings}\n"]
    parts += ["## Each tool\n"]
    for name, sub in tools.items():
        parts += [f"### {name} {{#{anchor(name)}}}\n", f"```text\n{plain_help(sub)}\n```\n"]
        for action, inner in subcommands(sub).items():
            parts += [f"```text\n{plain_help(inner)}\n```\n" if action else ""]
    return "\n".join(parts)


def subcommands(parser) -> dict:
    """Parsers of the actions of a command, by name."""
    choices = [action.choices for action in parser._actions if action.nargs == "A..."]
    return dict(choices[0]) if choices else {}


def plain_help(parser) -> str:
    """The help of a parser at a fixed width."""
    formatter = type(parser.formatter_class("x")).__mro__[0]
    parser.formatter_class = lambda prog: formatter(prog, width=96, max_help_position=30)
    return parser.format_help().strip()


def anchor(name: str) -> str:
    """The anchor of a command, whose name may have a flag: `tokenize --executor`."""
    return name.replace(" --", "-")


def sentence(text: str) -> str:
    """A description as a table entry: in lower case at the beginning, without a full stop."""
    text = text.rstrip(".")
    return text[:1].lower() + text[1:]


def as_markdown(docstring: str) -> str:
    """A recipe's docstring, with its indented commands as code blocks."""

    def block(found: re.Match) -> str:
        return "\n```text\n" + inspect.cleandoc(found[0].strip("\n")) + "\n```\n"

    return re.sub(r"(?:^    .*\n?)+", block, docstring, flags=re.MULTILINE)


@functools.cache
def settings_of_recipes() -> dict[str, list[type]]:
    """The settings dataclasses of each recipe and experiment that has any, by its name."""
    from hmm_datasets.operations.launching import recipe_names, recipe_settings

    found = {name: recipe_settings(name) for name in recipe_names()}
    return {name: list(kinds) for name, kinds in found.items() if kinds}


def settings_page() -> str:
    """A table of settings for each recipe: type, default, help."""
    recipes = settings_of_recipes()
    users: dict[type, list[str]] = {}
    for name, kinds in recipes.items():
        for kind in kinds:
            users.setdefault(kind, []).append(name)
    parts = [
        "# Settings\n",
        "The settings of the recipes, for YAML files and for the flags that override them (`--NAME VALUE`). The "
        "page is generated from the settings dataclasses.\n",
        "`pretrain` and `midtrain` also have all settings of transformers' "
        "[`TrainingArguments`](https://huggingface.co/docs/transformers/main_classes/trainer), and `sft`, `dpo` and "
        "`grpo` those of TRL's [`SFTConfig`](https://huggingface.co/docs/trl/sft_trainer), "
        "[`DPOConfig`](https://huggingface.co/docs/trl/dpo_trainer) and "
        "[`GRPOConfig`](https://huggingface.co/docs/trl/grpo_trainer). The tables list only the settings that "
        "this package adds and those whose defaults it changes.\n",
        "| recipe | its settings |\n|---|---|",
    ]
    anchors = {kind: kind.__name__.lower() for kind in users}
    for name, kinds in recipes.items():
        links = ", ".join(f"[{kind.__name__}](#{anchors[kind]})" for kind in kinds)
        parts.append(f'| <span id="{anchor(name)}"></span>`{name}` | {links} |')
    for kind, names in users.items():
        parts += [f"\n## {kind.__name__} {{#{anchors[kind]}}}\n"]
        parts += ["Settings of " + ", ".join(f"`{name}`" for name in names) + ".\n"]
        parts += ["| setting | type | default | description |\n|---|---|---|---|", *_rows(kind)]
    return "\n".join(parts) + "\n"


def _rows(kind: type) -> list[str]:
    ours = [base for base in kind.__mro__ if base.__module__.startswith(("hmm_datasets", "_recipe"))]
    own = {name for base in ours for name in inspect.get_annotations(base)}
    bases = [base for base in kind.__mro__ if base not in ours and dataclasses.is_dataclass(base)]
    inherited = {field.name for base in bases for field in dataclasses.fields(base)}
    rows = []
    for field in dataclasses.fields(kind):
        if field.name not in own:
            continue
        text = " ".join(field.metadata.get("help", "").split())
        if not text and field.name in inherited:
            text = "As in the base class, with another default."
        cells = (f"`{field.name}`", f"`{_type(field.type)}`", _default(field), text)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _type(kind) -> str:
    members = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_type(one) for one in members if one is not type(None))
    return str(kind) if members or isinstance(kind, str) else kind.__name__


def _default(field) -> str:
    if field.default is not dataclasses.MISSING:
        return "none" if field.default is None else f"`{field.default!r}`"
    if field.default_factory is dataclasses.MISSING:
        return "required"
    if field.name == "dataloader_num_workers":
        return "0 or 2"  # depends on the machine that builds the site
    value = field.default_factory()
    return f"`{value!r}`"


def support_table() -> str:
    """The settings of transformers and TRL that work and that are refused, in Markdown."""
    from hmm_datasets.training.refusal_rules import TRAINERS
    from hmm_datasets.training.refusals import REFUSALS

    works = (Path(__file__).parents[1] / "tests" / "training" / "settings_that_work.tsv").read_text("utf-8")
    rows = [line.split("\t") for line in works.splitlines()[1:]]
    lines = [f"| `{name}` | works | {effect} |" for name, _, effect in rows]
    for row in REFUSALS:
        what = "refused" if row.trainers is TRAINERS else f"refused by {', '.join(row.trainers)}"
        if row.trainers is TRAINERS and row.name in {name for name, *_ in rows}:
            what = f"`{row.example}` is refused"
        lines.append(f"| `{row.name}` | {what} | {row.reason} |")
    header = ["| setting | here | what it does, or why not |", "|---|---|---|"]
    return "\n".join(header + sorted(lines, key=lambda line: line.split("`")[1]))


def trainer_settings_page() -> str:
    """Which settings of transformers and TRL work here."""
    from hmm_datasets.cli import settings_of_commands
    from hmm_datasets.runtime.setting_rules import VOID_HEADER, void_rows

    rows = [VOID_HEADER, ("---",) * len(VOID_HEADER), *void_rows(settings_of_commands())]
    voids = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        "# Settings of transformers and TRL\n\n"
        "`pretrain` and `midtrain` have all settings of transformers' `TrainingArguments`; `sft`, `dpo` and `grpo` "
        "have those of TRL. The table lists the ones that reach a training step or its evaluations. What does not "
        f"work is refused before data are read.\n\n{support_table()}\n\n"
        "## Settings without effect beside others\n\n"
        "Of all commands; beside these a setting is refused.\n\n"
        f"{voids}\n"
    )


def versions_page() -> str:
    """The versions that pyproject.toml accepts, and those of constraints.txt, by group of dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}
    parts = [
        "# Versions\n",
        f"The package is version {project['version']} and needs Python {project['requires-python']}. The tables have "
        "the versions of its dependencies that it accepts, from `pyproject.toml`, and the ones that were tested "
        "together, from `constraints.txt`.\n",
    ]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, needed in groups.items():
        requirements = [one for one in map(Requirement, needed) if one.name != project["name"]]
        if not requirements:
            continue
        parts += [f"\n## {EXTRAS[extra]}\n" if extra else "## Always installed\n"]
        parts += [f'`pip install ".[{extra}]"` in a clone of the repository.\n'] if extra else []
        parts += ["| package | accepted | tested |\n|---|---|---|"]
        for one in requirements:
            accepted = ", ".join(sorted(map(str, one.specifier), reverse=True))
            version = tested.get(canonicalize_name(one.name), "not with the others")
            parts.append(f"| {one.name} | {accepted} | {version} |")
    return "\n".join(parts) + "\n"


GALLERY = {
    "What a model learns about one process": (
        "excess",
        "belief-geometry",
        "constrained-beliefs",
        "generalized-processes",
        "factored-beliefs",
        "quantization",
    ),
    "Learning from the context": (
        "icl-transition",
        "four-phases",
        "nonergodic",
        "architectures",
        "wind-tunnels",
        "ginc",
        "llm-on-hmms",
        "benchmark-models",
    ),
    "From text": ("wordplay", "tinystories-hmm", "icll", "leaky-tokenizer", "token-price", "after-pretraining"),
    "Chat and post-training": ("known-optimum", "objectives", "frontier", "samplers", "chat-ladder"),
    "Scale": ("scaling", "zac-gpt", "tr1"),
}
"""The experiments in the order in which a newcomer understands them."""

MEANINGS = {
    "chat-ladder": "The ladder is the order of the stages: each starts from the model of an earlier one.",
    "ginc": "GINC is the paper's generative in-context learning dataset.",
    "icll": "The name stands for in-context learning of languages.",
    "tr1": "The name is that of BLOOM's first large training run, tr1-13B.",
    "wind-tunnels": 'The paper calls small tasks whose posterior is known exactly "wind tunnels".',
    "zac-gpt": "The stages are pretraining, midtraining, fine-tuning, and LIMA, a thousand selected conversations.",
}
"""What names mean that do not say it themselves."""

_SHELL = re.compile(r"```sh\n(.+?)```\n", re.DOTALL)


def gallery_page() -> str:
    """The experiments with their pictures, as their READMEs describe them."""
    from hmm_datasets.operations.experiments import experiment_script, gallery

    experiments = {one.name: one for one in gallery()}
    pictures = {source: name for name, source in PICTURES.items()}
    parts = [
        "# Gallery\n",
        f"The {len(experiments)} experiments of the package, in an order for newcomers. Each is one command, which "
        "trains its models, measures them and writes tables and pictures. Times are of the small size. "
        "[Results](results.md) has the tables, and [Experiments](../how_to/experiments.md) describes how to run and "
        "change one.\n",
    ]
    for title, names in GALLERY.items():
        parts += [f"## {title}\n"]
        for name in names:
            one, readme = experiments[name], experiment_script(name).with_name("README.md")
            question, command, result = _SHELL.split(readme.read_text(encoding="utf-8"), maxsplit=1)
            question = question.rpartition(f"- Time on two cores: {one.time}\n")[2].strip()
            result = re.sub(r"!\[[^]]*\]\([^)]+\)", "", result.partition("\n## ")[0]).strip()
            result = result.replace("../../../docs/", "../").replace("(#results)", f"(results.md#{name})")
            parts += [f"### {one.summary} {{#{name}}}\n"]
            parts += [f"{question} {MEANINGS.get(name, '')}".strip() + "\n", f"```sh\n{command}```\n", f"{result}\n"]
            if one.picture is not None:
                caption = re.search(r"!\[([^]]*)\]", readme.read_text(encoding="utf-8"))[1]
                parts += [f"![{caption}](../{pictures[one.picture.relative_to(ROOT).as_posix()]})\n"]
            parts += [f"Paper: {_paper_pages(one.paper)}. Time on two cores: {one.time}.\n"]
    return "\n".join(parts)


RESULTS = "explanations/results.md"
WITH_PAGES = ("objectives", "frontier", "samplers")
"""Experiments whose tables are a page of their own."""


def with_tables(results: str) -> str:
    """The page of results with the tables of the experiments to which it links."""
    names = dict.fromkeys(re.findall(r"experiments/(\w+)/README\.md#results", results))
    results = re.sub(
        r"\(\.\./\.\./recipes/experiments/(\w+)/README\.md#results\)",
        lambda link: f"(#{link[1].replace('_', '-')})",
        results,
    )
    parts = [tables_of(name).replace("Results", f"### {name.replace('_', '-')}", 1) for name in names]
    return "\n".join([results, "## The experiments\n", *parts])


def tables_page(folder: str) -> str:
    """A page of the tables of an experiment."""
    return f"# {folder.capitalize()}: all tables\n\n## {tables_of(folder)}"


def tables_of(folder: str) -> str:
    """The second part of an experiment's README, after the mark of its first heading."""
    place = ROOT / "recipes" / "experiments" / folder
    tables = (place / "README.md").read_text(encoding="utf-8").partition("\n## ")[2]
    tables = tables.replace("../../../docs/explanations/", "").replace("../../../docs/", "../")
    tables = re.sub(r"\.\./(\w+)/README\.md", r"\1_tables.md", tables)
    for name, source in PICTURES.items():
        if (ROOT / source).parent == place:
            tables = tables.replace(f"]({Path(source).name})", f"](../{name})")
    return _paper_pages(tables)


def _paper_pages(text: str) -> str:
    """Links to arXiv as links to the pages of the papers on the Hub."""
    return text.replace("https://arxiv.org/abs/", "https://huggingface.co/papers/")


EXTRAS = {
    "deepspeed": "ZeRO",
    "pomegranate": "HMMs from and to pomegranate",
    "hmmlearn": "HMMs from and to hmmlearn",
    "datatrove": "Tokenization on a cluster",
    "peft": "LoRA",
    "gguf": "Models in GGUF files",
    "serve": "Serving a model",
    "slurm": "Sweeps under Slurm",
    "fastokens": "Faster tokenizers",
    "secrets": "Search for secrets before a push",
    "torchao": "Quantization by torchao, in one experiment",
    "notebooks": "Executing the notebooks",
    "bench": "Benchmarks against other libraries",
    "docs": "Building this site",
    "dev": "Tests",
}
"""What each extra of pyproject.toml is for."""

PAGES = {
    "explanations/gallery.md": gallery_page,
    **{f"explanations/{name}_tables.md": functools.partial(tables_page, name) for name in WITH_PAGES},
    "reference/commands.md": commands_page,
    "reference/settings.md": settings_page,
    "reference/trainer_settings.md": trainer_settings_page,
    "reference/versions.md": versions_page,
}
"""Generated pages, by their path in the site."""

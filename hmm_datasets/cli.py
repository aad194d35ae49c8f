"""The `hmm-datasets` command, with one short function per subcommand. Recipes are started by `recipe_commands`.

Slow imports are in the functions that need them, so that `--help` is fast. Bad input ends with an error of one line
and exit code 2. A check that finds something wrong ends with exit code 1.
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .commands import chat as chat_command
from .commands import checkpoint as checkpoint_command
from .commands import preflight as preflight_command
from .commands import replay as replay_command
from .commands import supervise as supervise_command
from .commands import sweep as sweep_command
from .commands import watch as watch_command
from .commands.plan import configs, copy_config, corpora, plan
from .commands.process import SPLITS, describe, processes, sample, score
from .compat.accelerate import flags_of
from .errors import InputError, suggestion
from .operations.experiments import experiment_names, experiment_script, gallery_text, name_of
from .operations.launching import RECIPE_COMMANDS, recipe_of, start
from .runtime.one_line_errors import one_line_errors
from .runtime.settings import hyphenated, parse_known

HEADINGS = {
    "data": ("processes", "describe", "sample", "corpora", "fit", "tokenize"),
    "train": ("demo", "configs", "plan", "pretrain", "midtrain", "sft", "dpo", "grpo"),
    "measure": ("evaluate", "score", "benchmark", "compare", "answers", "replay", "experiment"),
    "share": ("push", "report", "chat"),
    "operate": ("preflight", "sweep", "watch", "supervise", "checkpoint", "verify"),
}
"""The commands that `--help` lists."""

OLD_NAMES = {
    "entropy-rate": ("describe", "--only", "entropy-rate"),
    "emissions": ("describe", "--emissions"),
    "tokenize-with-datatrove": ("tokenize", "--executor", "local"),
    "push-all": ("push",),
    "requeue": ("supervise", "--requeue"),
}
"""Commands of version 0.1, which run in this release, and what they are now."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        with one_line_errors():
            argv = _renamed(argv)
            name, rest = argv[:1], argv[1:]
            if name == ["experiment"] and rest and not rest[0].startswith("-"):
                return start(name_of(experiment_script(rest[0])), rest[1:])
            if name and (recipe_of(name[0], rest) in RECIPE_COMMANDS or name[0].endswith(".py")):
                return start(recipe_of(name[0], rest), rest)
            argv, supervised = supervise_command.split(argv)
            parser, parsers = build_parsers()
            if name and not name[0].startswith("-"):
                _check_name(name[0])
            arguments, flags = parse_known(parser, argv)
            if flags and arguments.run not in (plan, preflight_command.preflight):
                known = flags_of(parsers[name[0]])
                unknown = next((word for word in flags if word.startswith("-")), flags[0])
                near = suggestion(hyphenated(unknown).partition("=")[0], known) or ";"
                raise InputError(f"{name[0]}: unknown argument {unknown}{near} `{name[0]} --help` lists all")
            arguments.flags, arguments.words, arguments.supervised = flags, argv[1:], supervised
            return arguments.run(arguments)
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe. Flushing the rest of the buffer at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


def _renamed(argv: list[str]) -> list[str]:
    """The arguments with the name that an old command has now."""
    if argv and argv[0] in OLD_NAMES:
        now = list(OLD_NAMES[argv[0]])
        if argv[0] == "tokenize-with-datatrove" and any(word.startswith("--executor") for word in argv):
            now = now[:1]
    elif argv and argv[0] in experiment_names():
        now = ["experiment", argv[0]]
    else:
        return argv
    print(f"hmm-datasets {argv[0]} is now: hmm-datasets {' '.join(now)}", file=sys.stderr, flush=True)
    return [*now, *argv[1:]]


def _check_name(name: str) -> None:
    """Raise an error that names the nearest command, if there is none of this name."""
    known = [*(one for names in HEADINGS.values() for one in names), *OLD_NAMES]
    if name == "hub":
        raise InputError("hub: is not a command any more; in a checkout of the project, run python tests/local_hub")
    if name not in known:
        near = suggestion(name, [*known, *experiment_names()]) or ";"
        raise InputError(f"{name}: no such command{near} `hmm-datasets --help` lists all")


def build_parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command, and those of its subcommands. Arguments of recipes are parsed by the recipes."""
    parser = argparse.ArgumentParser(
        prog="hmm-datasets",
        usage="hmm-datasets COMMAND ...",
        description="Hidden Markov models as data sets, and the runs trained on them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    for name, recipe in RECIPE_COMMANDS.items():
        commands.add_parser(name, description=f"{recipe.summary}.", add_help=False)
    command = _add(commands, "experiment", experiment, "list the experiments, or run one of them")
    command.add_argument("name", nargs="?", metavar="NAME", help="run this one; flags of its own follow")
    _add_hmm_commands(commands)
    _add_planning_commands(commands)
    _add_result_commands(commands)
    _add_run_commands(commands)
    parsers = dict(commands.choices)
    parser.epilog = commands_text(parsers)
    return parser, parsers


def commands_text(parsers: dict[str, argparse.ArgumentParser]) -> str:
    """The commands by their headings, each with its sentence."""
    lines = []
    for heading, names in HEADINGS.items():
        lines += [f"{heading}:"]
        for name in names:
            text = (parsers[name].description or "").removesuffix(".")
            lines += [f"  {name:12}{text[:1].lower() + text[1:]}"]
    return "\n".join([*lines, "", "hmm-datasets COMMAND --help describes a command."])


def _add_hmm_commands(commands) -> None:
    """Add the commands that sample from an HMM and describe it."""
    command = _add_hmm_command(commands, "sample", sample, "draw sequences from an HMM")
    command.add_argument("--num-sequences", type=int, default=1, metavar="N", help="default 1")
    command.add_argument("--length", type=int, default=64, metavar="L", help="tokens per sequence, default 64")
    command.add_argument("--seed", type=int, default=0, help="seed of the stream, default 0")
    command.add_argument("--first", type=int, default=0, metavar="I", help="index of the first sequence, default 0")
    command.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=".npy, .bin (raw little-endian) or .txt (one line per sequence); by default text to stdout",
    )
    command.add_argument("--text", action="store_true", help="write the names of symbols, as words, not their numbers")

    command = _add_hmm_command(commands, "score", score, "log-likelihood of sequences, in nats per token")
    command.add_argument(
        "tokens",
        type=Path,
        metavar="FILE",
        help=".npy with integers of shape (N, L); or sentences: a text file, or words/ of a fit",
    )
    command.add_argument("--length", type=int, default=64, metavar="L", help="words per window, default 64")
    command.add_argument("--split", choices=SPLITS, default="test", help="sentences of words/, default test")

    command = _add(commands, "processes", processes, "list the processes that can be named, with their entropy rates")
    command.add_argument("names", nargs="*", metavar="NAME", help="some of them, or calls such as 'mess3(x=0.05)'")
    command.add_argument("--json", action="store_true", help="JSON instead of a table")

    command = _add_hmm_command(commands, "describe", describe, "sizes, states, mixing, and losses of predictors")
    command.add_argument("--length", type=int, default=64, metavar="L", help="positions to measure at, default 64")
    command.add_argument(
        "--num-sequences", type=int, default=2048, metavar="N", help="sequences to measure on, default 2048"
    )
    command.add_argument("--json", action="store_true", help="JSON instead of tables")
    command.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="write heat maps there, and for 3 states the beliefs"
    )
    command.add_argument("--only", choices=("entropy-rate",), help="only the best possible loss, in nats per token")
    command.add_argument(
        "--emissions",
        action="store_true",
        help="instead, of the output folder of a fit: draw how the emissions of states change over it",
    )
    command.add_argument("--states", type=int, nargs="+", metavar="S", help="with --emissions; the most visited three")
    command.add_argument("--top", type=int, default=20, metavar="K", help="with --emissions: symbols, default 20")
    command.add_argument("--output", type=Path, metavar="FILE.png", help="with --emissions; default in the folder")


def _add_planning_commands(commands) -> None:
    """Add the commands that list what can be run and plan a run."""
    command = _add(commands, "configs", configs, "list the shipped settings and recipes, or copy them for editing")
    actions = command.add_subparsers(metavar="copy")
    copy = _add(actions, "copy", copy_config, "copy a shipped file, or a folder of them, for editing")
    copy.add_argument("name", metavar="NAME", help="demo, demo/pretrain_hmm.yaml, zero3, pretrain.py, ...")
    copy.add_argument("destination", nargs="?", type=Path, metavar="DEST", help="default NAME in the current folder")

    command = _add(commands, "corpora", corpora, "list the named corpora: size, licence, columns")
    command.add_argument("--json", action="store_true", help="JSON instead of a table")

    command = _add(commands, "plan", plan, "tokens, memory and time of a recipe, before it runs")
    command.add_argument("settings", metavar="FILE.yaml", help="settings of fit, pretrain, midtrain, sft or dpo")
    command.add_argument("--num-processes", type=int, metavar="N", help="ranks; default those of --launch, or 1")
    command.add_argument(
        "--launch", "--config-file", metavar="CONFIG", help="a launch configuration: name of a shipped one, or a file"
    )
    command.add_argument(
        "--devices",
        nargs="+",
        metavar="NAME",
        help="instead, how to run it fastest on these devices: H200, A100, T4, ...",
    )
    command.add_argument("--ranks", nargs="+", type=int, default=[1, 8], metavar="N", help="devices, default 1 8")
    command.add_argument("--models", nargs="+", metavar="SIZE", help="sizes, by default that of the file")
    command.add_argument(
        "--network", type=float, default=25, metavar="GB/S", help="per device, between machines of eight; default 25"
    )
    command.add_argument(
        "--assumed-vocab-size",
        type=int,
        metavar="V",
        help="plan before the data exist, for this vocabulary; the model to midtrain may be a preset",
    )
    command.add_argument("--json", action="store_true", help="JSON instead of tables")
    command.epilog = (
        "All other flags are those of the recipe and override the file; --assumed_device H200, for example, gives the "
        "time on an H200."
    )


def _add_result_commands(commands) -> None:
    """Add the commands that compare results and push them to the Hub."""
    command = _add(commands, "compare", compare, "compare several evaluations, with paired intervals")
    command.add_argument("runs", nargs="+", metavar="RUN", help="folder of an evaluation; the first is the reference")
    command.add_argument("--output-dir", type=Path, metavar="FOLDER", help="write report, page and plots there")
    command.add_argument(
        "--heat-map",
        nargs=2,
        metavar=("X", "Y"),
        help="axes: entries of the reports, such as optimum.num_states optimum.length",
    )
    command.add_argument(
        "--value",
        default="optimum.bayes_gap.bayes_gap",
        help="entry that the heat map shows, default optimum.bayes_gap.bayes_gap",
    )

    command = _add(commands, "benchmark", benchmark, "score models on twelve processes whose optimum is known")
    command.add_argument(
        "models", nargs="*", metavar="MODEL", help="causal language model, or folder with one for each process"
    )
    command.add_argument("--data", metavar="DATA", help="folder or Hub name of the data set; computed by default")
    command.add_argument(
        "--process", action="append", default=[], metavar="NAME", help="one process, may be repeated; default all"
    )
    command.add_argument("--track", choices=("ids", "text"), help="default text if the model has a tokenizer")
    command.add_argument("--num-sequences", type=int, default=256, metavar="N", help="of each process, default 256")
    command.add_argument("--batch-size", type=int, default=32, metavar="B", help="sequences per pass, default 32")
    command.add_argument("--output-dir", metavar="FOLDER", help="default benchmark/ in the model's folder")
    command.add_argument("--dataset-id", metavar="USER/NAME", help="data set that .eval_results names; default DATA")
    command.add_argument("--push", action="store_true", help="add .eval_results to the model's repository on the Hub")
    command.add_argument("--write-data", metavar="FOLDER", help="write the data set's repository there, for the Hub")

    command = _add(commands, "push", push, "push a run, HMM, data set or anything else to the Hub, in one commit")
    command.add_argument(
        "path", type=Path, metavar="PATH", help="folder, file of documents, or 'process:mess3(x=0.05, a=0.85)'"
    )
    command.add_argument("repo_id", metavar="REPO_ID", help="USER/NAME")
    command.add_argument(
        "--repo-type",
        choices=("model", "dataset"),
        help="default that of what PATH is; with dataset an HMM becomes a data set of its sequences",
    )
    command.add_argument("--dry-run", action="store_true", help="only say what would be pushed")
    command.add_argument("--revision", metavar="BRANCH", help="branch to push to, created if missing; default main")
    command.add_argument("--tag", metavar="TAG", help="name for the commit")
    command.add_argument(
        "--private", action=argparse.BooleanOptionalAction, help="make the repository private; default as the Hub does"
    )
    command.add_argument(
        "--include-checkpoints", action="store_true", help="push each checkpoint-N of a run to a branch step-N"
    )
    command.add_argument("--licence", metavar="ID", help="licence for a card that is made, such as cc0-1.0")
    command.add_argument("--name", metavar="TITLE", help="title of a card that is made; default the repository's name")
    command.add_argument("--message", metavar="TEXT", help="message of the commit")
    command.epilog = "With --config FILE.yaml instead of PATH it pushes several folders: `configs copy push.py`."

    chat_command.add_arguments(_add(commands, "chat", chat_command.chat, "talk to a model in the terminal"))


def _add_run_commands(commands) -> None:
    """Add the commands that check and watch a run from outside."""
    command = _add(commands, "sweep", sweep_command.sweep, "run a recipe with many settings, each in its own folder")
    sweep_command.add_arguments(command, commands.choices)

    command = _add(commands, "preflight", preflight_command.preflight, "check machines and ranks before a run")
    preflight_command.add_arguments(command)

    command = _add(commands, "checkpoint", None, "list, check, convert, average, slim and prune checkpoints")
    checkpoint_command.add_arguments(command)

    command = _add(commands, "verify", verify, "check that the files of a folder have not changed")
    command.add_argument(
        "path", type=Path, metavar="PATH", help="process, tokens, checkpoint or run, or a folder of them"
    )

    command = _add(commands, "watch", watch_command.watch, "say whether a run is well, live if asked")
    watch_command.add_arguments(command)

    command = _add(commands, "supervise", supervise_command.supervise, "start a run again after faults")
    supervise_command.add_arguments(command)

    command = _add(commands, "replay", replay_command.replay, "compute the loss of a step of a run again, row by row")
    replay_command.add_arguments(command)


def experiment(arguments: argparse.Namespace) -> int:
    """List the experiments; one that is named is started before arguments are parsed."""
    print(gallery_text())
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Print the comparison, and write it to a folder if one is given."""
    from .evaluation.comparison import compare_reports, comparison_text, write_comparison

    found = compare_reports(arguments.runs, heat_map=arguments.heat_map, value=arguments.value)
    print(comparison_text(found))
    if arguments.output_dir is not None:
        write_comparison(found, arguments.output_dir)
        print(f"\n{arguments.output_dir}/")
    return 0


def benchmark(arguments: argparse.Namespace) -> int:
    """Score models on the benchmark, or write the benchmark's data set."""
    from .evaluation.benchmark.report import BenchmarkSettings, models_text, run_benchmark
    from .evaluation.benchmark.repository import write_benchmark

    if not arguments.models and arguments.write_data is None:
        raise InputError("benchmark: give a MODEL to score, or --write_data FOLDER to write the data set")
    if len(arguments.models) > 1 and arguments.output_dir is not None:
        raise InputError("--output_dir: is one folder for several models; leave it out, or give one MODEL")
    if arguments.write_data is not None:
        write_benchmark(arguments.write_data)
        print(f"{arguments.write_data}/: `hmm-datasets push {arguments.write_data} USER/NAME --repo-type dataset`")
    settings = [
        BenchmarkSettings(
            model=model,
            data=arguments.data,
            processes=tuple(arguments.process),
            track=arguments.track,
            num_sequences=arguments.num_sequences,
            batch_size=arguments.batch_size,
            output_dir=arguments.output_dir,
            dataset_id=arguments.dataset_id,
            push=arguments.push,
        )
        for model in arguments.models
    ]
    reports = [run_benchmark(one) for one in settings]
    if len(reports) > 1:
        print(f"\n{models_text(reports)}")
    return 0


def push(arguments: argparse.Namespace) -> int:
    """Push what belongs to a path to the Hub."""
    from .hub.kinds.push import PushSettings, push_path

    names = (field.name for field in dataclasses.fields(PushSettings))
    push_path(arguments.path, arguments.repo_id, PushSettings(**{name: getattr(arguments, name) for name in names}))
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Check all files in a folder that this package wrote; fail if one differs."""
    from .operations.verification import verify

    failed = False
    for found in verify(arguments.path):
        failed |= not found.ok
        for line in found.problems or (f"{found.folder}: {found.kind}",):
            print(f"{'ok  ' if found.ok else 'BAD '}  {line}", flush=True)
    return 1 if failed else 0


def _add(commands, name: str, run, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
    command.set_defaults(run=run)
    return command


def _add_hmm_command(commands, name: str, run, text: str) -> argparse.ArgumentParser:
    command = _add(commands, name, run, text)
    command.add_argument(
        "hmm",
        metavar="HMM",
        help="folder of an HMM or another process, its name on the Hub, or 'process:mess3(x=0.05, a=0.85)'",
    )
    return command


if __name__ == "__main__":
    sys.exit(main())

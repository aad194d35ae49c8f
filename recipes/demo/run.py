"""The whole road in some minutes on two cores: text, HMM, stream, pretrain, measure, midtrain, SFT, report, push.

    python recipes/demo/run.py

Runs the recipes one after another, each as its own command, which is printed; stops at the first that fails. Started
again it goes on where it stopped: training that is done is not done twice.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

LAUNCH = "accelerate launch --config_file accelerate_configs/{}.yaml recipes/{}.py --config recipes/demo/{}.yaml"
STAGES = (
    ("Words of real stories, and an HMM fitted to them", LAUNCH.format("cpu2", "fit_hmm", "fit_hmm")),
    ("A Llama on sequences drawn from it, on two processes", LAUNCH.format("cpu2", "pretrain", "pretrain_hmm")),
    ("How far from the optimum?", LAUNCH.format("cpu2", "evaluate", "evaluate_hmm")),
    ("BPE, token streams", "python recipes/tokenize_corpus.py --config recipes/demo/tokenize_corpus.yaml"),
    ("A Llama on the stories", LAUNCH.format("cpu2", "pretrain", "pretrain_text")),
    ("Midtraining on stories and conversations", LAUNCH.format("cpu2", "midtrain", "midtrain")),
    ("Fine-tuning on conversations, and an answer", LAUNCH.format("cpu2", "sft", "sft")),
    ("Bits per byte of held-out stories", LAUNCH.format("cpu2", "evaluate", "evaluate_text")),
    ("Report", "python recipes/report.py --experiment outputs/demo"),
    ("Push", "python recipes/push.py --config recipes/demo/push.yaml"),
)


def main() -> int:
    """Run every stage; return the exit code of the first that failed, or 0."""
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "true"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    began = time.time()
    for number, (title, command) in enumerate(STAGES, start=1):
        print(f"\n[{number}/{len(STAGES)}] {title}\n$ {command}", flush=True)
        started = time.time()
        code = subprocess.run(_resolve(shlex.split(command)), cwd=root, env=environment).returncode
        if code != 0:
            print(f"stage {number} failed with exit code {code}: {command}", file=sys.stderr)
            return code
        print(f"({time.time() - started:.0f} s)", flush=True)
    print(f"\nAll of it took {time.time() - began:.0f} s.")
    return 0


def _resolve(words: list[str]) -> list[str]:
    """The command under this interpreter, whatever the PATH."""
    if words[0] == "accelerate":
        return [sys.executable, "-m", "accelerate.commands.accelerate_cli", *words[1:]]
    return [sys.executable, *words[1:]]


if __name__ == "__main__":
    sys.exit(main())

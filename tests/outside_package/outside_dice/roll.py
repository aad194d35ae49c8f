"""Print throws of a process."""

from dataclasses import dataclass

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting


@dataclass
class RollSettings:
    process: str = setting("dice", "What is thrown.")
    throws: int = setting(5, "How often.")


def main(settings: RollSettings) -> None:
    from hmm_datasets import load_source

    print(*load_source(settings.process).sample(1, settings.throws)[0])


if __name__ == "__main__":
    run(main)

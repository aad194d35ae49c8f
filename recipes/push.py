# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets"]
# ///

"""Push several folders of an experiment to the Hub.

The Hub is that at HF_ENDPOINT, by default huggingface.co; each folder is one commit.

    hmm-datasets push --config demo/push.yaml [--namespace me ...]

If the Hub does not answer or there is no token, it does not fail, and prints how to push later.
"""

import shlex
from dataclasses import MISSING, dataclass

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting


@dataclass
class PushSettings:
    """The folders to push, and their repositories."""

    folders: list[str] = setting(MISSING, "Folders, each with its README.md.")
    names: list[str] = setting(MISSING, "Names of the repositories, one per folder.")
    types: list[str] = setting(MISSING, "Types of the repositories, model or dataset, one per folder.")
    namespace: str | None = setting(None, "User or organization; by default the token's user.")
    private: bool = setting(False, "Create private repositories.")

    def __post_init__(self):
        if not len(self.folders) == len(self.names) == len(self.types) > 0:
            raise InputError(
                f"{len(self.folders)} folders, {len(self.names)} names, {len(self.types)} types; expected the same "
                "number, at least one"
            )


def main(settings: PushSettings) -> None:
    """Push every folder, or print how to do it later."""
    from huggingface_hub import HfApi

    from hmm_datasets.hub.download import reason_of_hub
    from hmm_datasets.hub.push import push_folder

    try:
        user = HfApi().whoami()["name"]
    except Exception as error:  # the client of the Hub raises errors of several libraries
        words = [settings.folders[0], f"{settings.namespace or 'USER'}/{settings.names[0]}"]
        command = shlex.join(["hmm-datasets", "push", *words, "--repo_type", settings.types[0]])
        print(f"not pushed ({reason_of_hub(error)}); where the Hub answers, and with HF_TOKEN set: {command}")
        return
    namespace = settings.namespace or user
    for folder, name, kind in zip(settings.folders, settings.names, settings.types, strict=True):
        result = push_folder(folder, f"{namespace}/{name}", repo_type=kind, private=settings.private)
        print(f"pushed {folder}: {result.url} ({result.files} files, {result.bytes:,} bytes)")


if __name__ == "__main__":
    run(main)

"""Redaction of the records of a run: copies without host names and absolute paths.

The files on this machine are not changed, because the host name tells on which node a failure occurred. In the pushed
copies, logs, cards and records of runs have `this-host` in place of the name of a host, and other JSON files where it
is the value of `host`. A path below the working directory becomes relative to it, and a path below the parent of the
folder becomes relative to that. A home is `~`, as it has the name of a person, and of any other absolute path in a
folder where people keep files only the last name is left. Vocabularies, in which a word may look like a path, are
never changed.
"""

import re
import socket
from pathlib import Path

_RECORDS = (".json", ".yaml", ".yml", ".html", ".md", ".log", ".out", ".err", "history.jsonl")
_DATA = (".jsonl", ".txt", ".csv", ".sh", ".toml", ".cfg", ".ini", ".py")
_VOCABULARIES = {
    *("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json", "special_tokens_map.json"),
    *("vocabulary.json", "vocabulary.txt"),
}
# Texts in which a host may be named anywhere; in other files, a host may be called as a word.
_WITH_HOSTS = ("run.json", "summary.json", "plan.json", "report.json", ".md", ".log", ".out", ".err")
_PLACES = (
    "var|mnt|media|opt|srv|data|scratch|work|workspace|tmp|shared|gpfs|lustre|nfs|fsx|project|projects|storage|content"
    "|private|Volumes"
)
_BEFORE = r"(?:file://|(?<![\w.~<>/+-]))"
_WITHIN = r"[^\s\"'`<>|:;,()\[\]{}\\*?/]"
_ANY_HOME = re.compile(rf"{_BEFORE}(?:(?:/{_WITHIN}+)*/(?:home|homes|users|Users)/{_WITHIN}+|/root\b)")


class Redaction:
    """Removes from text the names of hosts and the paths of this machine.

    Args:
        folder (`Path`): the folder that is pushed; the host names in its records are removed too.
    """

    def __init__(self, folder: Path):
        folder = folder.resolve()
        self.hosts = {socket.gethostname(), *_hosts_of(folder)} - {"localhost", ""}
        self._prefixes = [str(parent) for parent in (Path.cwd(), folder.parent) if len(parent.parts) > 1]
        tops = "|".join({_PLACES, *(re.escape(path.parts[1]) for path in (folder, Path.cwd()) if len(path.parts) > 1)})
        self._path = re.compile(rf"{_BEFORE}/(?:{tops})(?:/{_WITHIN}+)*/({_WITHIN}+)/?")
        home = Path.home()
        self._home = re.compile(rf"{_BEFORE}{re.escape(str(home))}(?=/|\b)") if len(home.parts) > 1 else None
        hosts = "|".join(sorted(map(re.escape, self.hosts), key=len, reverse=True)) or "(?!)"
        self._host = re.compile(rf"(?<![\w.-])(?:{hosts})(?![\w-])(?!\"\s*:)")  # no key, which programs read
        self._field = re.compile(rf'(?:(?<="host": ")|(?<="hostname": "))(?:{hosts})(?=")')

    def cleaned(self, path: Path) -> str | None:
        """The redacted text of a file, or None if there is nothing to redact or it must not be changed."""
        if path.name in _VOCABULARIES or not path.name.endswith(_RECORDS + _DATA):
            return None
        try:
            before = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return None
        after = (self._host if path.name.endswith(_WITH_HOSTS) else self._field).sub("this-host", before)
        # Data may contain paths that are not of any machine, so only paths of this run are made relative.
        after = self.without_paths(after) if path.name.endswith(_RECORDS) else self._relative(after)
        return None if after == before else after

    def without_paths(self, text: str) -> str:
        """The text with relative instead of absolute paths, including paths of other machines."""
        return self._path.sub(r"\1", _ANY_HOME.sub("~", self._relative(text)))

    def _relative(self, text: str) -> str:
        for prefix in self._prefixes:
            # The prefix is matched as a whole, so that it may contain spaces.
            text = re.sub(rf"{_BEFORE}{re.escape(prefix)}/(?={_WITHIN})", "", text)
        return text if self._home is None else self._home.sub("~", text)


def _hosts_of(folder: Path) -> set[str]:
    hosts: set[str] = set()
    for path in (folder / name for name in ("run.json", "history.jsonl", "events.jsonl")):
        if path.is_file():
            hosts.update(re.findall(r'"host(?:name)?": "([^"]+)"', path.read_text(encoding="utf-8", errors="replace")))
    return hosts

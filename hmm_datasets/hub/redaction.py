"""Redaction of the records of a run: copies without host names and absolute paths.

The files on this machine are not changed, because the host name tells on which node a failure occurred. In the pushed
copies, JSON records lose the key `host`, and logs and cards lose the host name, as do the texts in records of runs. A
path below the working directory becomes relative to it, and a path below the parent of the folder becomes relative to
that. Of any other absolute path only the last name is left, and a home is `~`, as it has the name of a person.
Vocabularies, in which a word may look like a path, are never changed.
"""

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

_RECORDS = (".json", ".yaml", ".yml", ".html")
_PROSE = (".md", ".log", ".out", ".err")
_DATA = (".jsonl", ".txt", ".csv", ".sh", ".toml", ".cfg", ".ini", ".py")
_ROWS = ("history.jsonl",)
_VOCABULARIES = {
    *("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json", "special_tokens_map.json"),
    *("vocabulary.json", "vocabulary.txt"),
}
# Folders of the operating system, whose paths are the same on every machine.
_SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr"}
_USUAL = {
    *("home", "Users", "root", "tmp", "var", "mnt", "media", "opt", "srv", "data", "scratch", "work", "workspace"),
    *("shared", "gpfs", "lustre", "nfs", "fsx", "project", "projects", "storage", "content", "private", "Volumes"),
}
# Records whose texts, such as a command, may have names of hosts; in other JSON files a host may be called as a word.
_OF_RUNS = ("run.json", "summary.json", "plan.json", "report.json")
_HOMES = r"(?:home|homes|users|Users)"
_BEFORE = r"(?:file://|(?<![\w.~<>/+-]))"
_WITHIN = r"[^\s\"'`<>|:;,()\[\]{}\\*?/]"


class Redaction:
    """Removes from text the names of hosts and the paths of this machine.

    Args:
        folder (`Path`): the folder that is pushed; the host names in its records are removed too.
    """

    def __init__(self, folder: Path):
        folder = folder.resolve()
        self.hosts = {socket.gethostname(), *_hosts_of(folder)} - {"localhost", ""}
        self._prefixes = [parent for parent in (Path.cwd(), folder.parent) if len(parent.parts) > 1]
        tops = {name for name in os.listdir("/") if os.path.isdir(f"/{name}")} if os.name == "posix" else set()
        names = "|".join(sorted(map(re.escape, (tops | _USUAL) - _SYSTEM)))
        self._path = re.compile(
            rf"{_BEFORE}/(?:{names})(?:/{_WITHIN}+)+/?|{_BEFORE}/root\b/?"
            rf"|{_BEFORE}(?:/{_WITHIN}+)*/{_HOMES}(?:/{_WITHIN}+)+/?"
        )
        home = str(Path.home())
        self._is_home = re.compile(rf"(?:file://)?(?:{re.escape(home)}|/root|(?:/{_WITHIN}+)*/{_HOMES}/{_WITHIN}+)/?")
        self._home = re.compile(rf"{_BEFORE}{re.escape(home)}(?=/|\b)") if len(Path(home).parts) > 1 else None
        words = "|".join(sorted(map(re.escape, self.hosts), key=len, reverse=True))
        self._host = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None

    def cleaned(self, path: Path) -> str | None:
        """The redacted text of a file, or None if there is nothing to redact or it must not be changed."""
        kind = path.suffix
        is_record = kind in _RECORDS + _PROSE or path.name in _ROWS
        if path.name in _VOCABULARIES or not (is_record or kind in _DATA):
            return None
        try:
            before = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return None
        after = self._without_hosts(before, path) if kind in (".json", ".jsonl") else before
        if kind in _PROSE and self._host is not None:
            after = self._host.sub("this-host", after)
        # Data may contain paths that are not of any machine, so only paths of this run are made relative.
        after = self.without_paths(after) if is_record else self._relative(after)
        return None if after == before else after

    def without_hosts(self, name: str) -> str:
        """The name of a file in the repository: that of a TensorBoard log, and of its folder, has the host name."""
        if not is_events(name):
            return name
        folder, _, last = name.rpartition("/")
        for host in self.hosts:
            folder = folder.replace(host, "this-host")
        last = re.sub(r"^(events\.out\.tfevents\.\d+)\..*?((?:\.\d+)*(?:\.v2)?)$", r"\1.this-host\2", last)
        return f"{folder}/{last}".lstrip("/")

    def cleaned_events(self, path: Path) -> bytes:
        """A TensorBoard log without the records that name the machine: the Trainer logs all its settings as one.

        A record is its length (8 bytes, little-endian), a checksum of that (4), the content, and its checksum (4)
        (https://www.tensorflow.org/tutorials/load_data/tfrecord). An incomplete one at the end is left out.
        """
        words = [word.encode() for word in (*self.hosts, *map(str, self._prefixes))]
        content, kept, begin = path.read_bytes(), [], 0
        while begin + 16 <= len(content):
            end = begin + 16 + int.from_bytes(content[begin : begin + 8], "little")
            record = content[begin:end]
            if end <= len(content) and not any(word in record for word in words):
                kept.append(record)
            begin = end
        return b"".join(kept)

    def without_paths(self, text: str) -> str:
        """The text with relative instead of absolute paths, including paths of other machines."""
        return self._path.sub(self._shortened, self._relative(text, of_home=False))

    def _shortened(self, match: re.Match) -> str:
        return "~" if self._is_home.fullmatch(match[0]) else match[0].rstrip("/").rpartition("/")[2]

    def _without_hosts(self, text: str, path: Path) -> str:
        """JSON or JSON Lines without the fields of hosts, and without their names in the strings of a record of a run;
        other keys stay."""
        host = self._host if path.name in _OF_RUNS else None
        if not (re.search(r'"host(name)?":', text) or (host is not None and host.search(text))):
            return text

        def cleaned(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: cleaned(part) for key, part in value.items() if key not in ("host", "hostname")}
            if isinstance(value, list):
                return [cleaned(part) for part in value]
            return host.sub("this-host", value) if host is not None and isinstance(value, str) else value

        def written(part: str, indent: int | None) -> str:
            try:
                return json.dumps(cleaned(json.loads(part)), indent=indent, ensure_ascii=False)
            except (json.JSONDecodeError, RecursionError):
                return part if host is None else host.sub("this-host", part)

        if path.suffix == ".jsonl":
            *rows, _torn = text.split("\n")  # a last row without a line end is left by a crash and never read
            return "".join(f"{written(row, None)}\n" for row in rows)
        return written(text, 2) + "\n"

    def _relative(self, text: str, of_home: bool = True) -> str:
        for prefix in self._prefixes:
            # The prefix is matched as a whole, so that it may contain spaces.
            text = re.sub(rf"{_BEFORE}{re.escape(str(prefix))}/(?={_WITHIN})", "", text)
        return self._home.sub("~", text) if of_home and self._home is not None else text


def is_events(name: str) -> bool:
    """Whether a file is a log of TensorBoard."""
    return name.rpartition("/")[2].startswith("events.out.tfevents.")


def _hosts_of(folder: Path) -> set[str]:
    hosts: set[str] = set()
    for path in (folder / name for name in ("run.json", "history.jsonl", "events.jsonl")):
        if path.is_file():
            hosts.update(re.findall(r'"host(?:name)?": "([^"]+)"', path.read_text(encoding="utf-8", errors="replace")))
    return hosts

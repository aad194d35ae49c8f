"""Damage to files and folders, drawn from a generator of random numbers: bytes, values of JSON, and paths."""

import gzip
import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

DIGITS, LEVELS = 5_000, 100_000

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "0", "x", "x" * 100_000, "\x00", "\ud800", "\x1b[2J", "a\nb", "../../etc", "é"),
    *([], {}, [[]], [None], {"": None}, ["x"] * 1_000, [0] * 1_000, [{}] * 3, {str(n): n for n in range(100)}),
)
"""What a value in a file may be instead."""

_TEXTS = (
    *(b"", b"\n", b" ", b"null", b"[]", b"{}", b"0", b'"x"', b"true", b"NaN", b"\x00" * 100, b"\xff" * 100),
    *(b"1" * DIGITS, b"[" * LEVELS, b'{"a":' * LEVELS, b"[" * 300 + b"]" * 300, b'{"a": 1', b"\xef\xbb\xbf{}"),
    *(b"PK\x03\x04", b"PAR1", b"GGUF", b"\x93NUMPY\x01\x00", b"\x1f\x8b\x08\x00", b"<html></html>", b"version https"),
)


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    """Some bytes with one to three changes of a random kind."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = draw.choice(_CHANGES)(content, draw)
    return content


def _flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content or b"\x00")
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _overwrite(content: bytes, draw: random.Random) -> bytes:
    place, length = draw.randrange(len(content) + 1), draw.choice((1, 2, 4, 8, 100))
    filler = draw.choice((b"\x00", b"\xff", b"\x7f", b"\x80", b"9"))
    return content[:place] + filler * length + content[place + length :]


def _number(content: bytes, draw: random.Random) -> bytes:
    """A count or a length of 4 or 8 bytes that is another one."""
    number = draw.choice((0, 1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1))
    form = draw.choice(["<I", "<Q", ">I", ">Q"])
    word = struct.pack(form, number % (1 << 32 if form.endswith("I") else 1 << 64))
    place = draw.choice((draw.randrange(min(len(content), 64) + 1), draw.randrange(len(content) + 1)))
    return content[:place] + word + content[place + len(word) :]


def _truncate(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _cut(content: bytes, draw: random.Random) -> bytes:
    first = draw.randrange(len(content) + 1)
    return content[:first] + content[first + draw.choice((1, 2, 16, 1_000)) :]


def _insert(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    part = draw.choice((draw.randbytes(draw.choice((1, 4, 100))), content[place : place + 100], *_TEXTS))
    return content[:place] + part + content[place:]


def _append(content: bytes, draw: random.Random) -> bytes:
    return content + draw.choice((b"\n", b"\x00", b"{", draw.randbytes(100), content))


def _replace(content: bytes, draw: random.Random) -> bytes:
    return draw.choice(_TEXTS)


def _encode(content: bytes, draw: random.Random) -> bytes:
    """Bytes in another encoding of text, or compressed."""
    way = draw.choice(("bom", "utf-16", "latin-1", "gzip", "lines"))
    if way == "bom":
        return b"\xef\xbb\xbf" + content
    if way == "gzip":
        return gzip.compress(content, mtime=0)
    if way == "lines":
        return content.replace(b"\n", b"\r\n")
    text = content.decode("utf-8", "replace")
    return text.encode(way, "replace")


_CHANGES = (*(_flip, _overwrite, _number, _truncate, _cut, _insert) * 3, _append, _replace, _encode)


def damage_json(value: Any, draw: random.Random) -> Any:
    """A value of JSON, of which one part, at any depth, is missing, another, doubled or renamed."""
    places = list(_places(value))
    if not places:
        return draw.choice(ODD_VALUES)
    whole, key = draw.choice(places)
    way = draw.choice(("value", "value", "value", "value", "drop", "double", "wrap", "rename", "digits", "levels"))
    if way == "drop":
        del whole[key]
    elif way == "digits":
        whole[key] = _Text("1" * DIGITS)
    elif way == "levels":
        whole[key] = _Text("[" * LEVELS + "]" * LEVELS) if draw.random() < 0.5 else _nested(300)
    elif way == "double" and isinstance(whole, list):
        whole.insert(key, whole[key])
    elif way == "wrap":
        whole[key] = draw.choice(([whole[key]], {"value": whole[key]}, str(whole[key])))
    elif way == "rename" and isinstance(whole, dict):
        whole[draw.choice(("", "x", key.upper(), key + "\x00"))] = whole.pop(key)
    else:
        whole[key] = draw.choice(ODD_VALUES)
    return value


class _Text(str):
    """JSON that Python's own library does not write."""


def _nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def json_bytes(value: Any) -> bytes:
    """A damaged value as JSON, in which lone surrogates are escaped."""
    texts: list[str] = []

    def marked(part: Any) -> Any:
        if isinstance(part, _Text):
            texts.append(part)
            return f"<<{len(texts) - 1}>>"
        if isinstance(part, dict):
            return {name: marked(inner) for name, inner in part.items()}
        return [marked(inner) for inner in part] if isinstance(part, list) and not _is_deep(part) else part

    written = json.dumps(marked(value))
    for number, text in enumerate(texts):
        written = written.replace(f'"<<{number}>>"', text)
    return written.encode()


def _is_deep(value: list) -> bool:
    for _ in range(20):
        if not (isinstance(value, list) and len(value) == 1):
            return False
        value = value[0]
    return True


def _places(value: Any, depth: int = 0) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield value, key
        if depth < 20:
            yield from _places(inner, depth + 1)


def damage_file(path: Path, draw: random.Random) -> None:
    """Damage a file in place: its bytes, or a value in its JSON, its lines of JSON, or its header of safetensors."""
    content = path.read_bytes()
    if path.suffix == ".json" and draw.random() < 0.7:
        content = json_bytes(damage_json(json.loads(content), draw))
    elif path.suffix in (".jsonl", ".ndjson") and draw.random() < 0.7 and content.strip():
        lines = content.splitlines()
        number = draw.randrange(len(lines))
        lines[number] = json_bytes(damage_json(json.loads(lines[number]), draw))
        content = b"\n".join(lines) + b"\n"
    elif path.suffix == ".safetensors" and draw.random() < 0.7:
        length = struct.unpack("<Q", content[:8])[0]
        header = json_bytes(damage_json(json.loads(content[8 : 8 + length]), draw))
        content = struct.pack("<Q", len(header)) + header + content[8 + length :]
    else:
        content = damage_bytes(content, draw)
    path.write_bytes(content)


def damage_path(path: Path, draw: random.Random) -> None:
    """Put something else where a file is: nothing, a folder, a link to itself or to nothing."""
    path.unlink()
    way = draw.choice(("nothing", "folder", "loop", "dangling"))
    if way == "folder":
        path.mkdir()
    elif way != "nothing":
        path.symlink_to(path.name if way == "loop" else "nowhere")


def damage_folder(folder: Path, draw: random.Random) -> None:
    """Damage one of the files in a folder; seldom the folder itself."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = draw.choice(files)
    if draw.random() < 0.02 and len(files) > 1:
        shutil.rmtree(folder)
        folder.write_bytes(b"") if draw.random() < 0.5 else folder.mkdir()
    elif draw.random() < 0.05:
        damage_path(path, draw)
    else:
        damage_file(path, draw)

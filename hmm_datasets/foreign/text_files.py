"""Text files of anyone, plain or compressed as `.gz` or `.zst`.

They are UTF-8, or UTF-16 after its byte order mark. No other encoding is guessed, since almost every file can be read
as Windows-1252, whatever it was written in. A NUL character is in no text, but in UTF-16 that is read as UTF-8, and
where a disk has lost what was written.
"""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import InputError, first_line, is_path_error, path_error, path_errors
from .sizes import check_expansion

COMPRESSED = (".gz", ".zst")


def suffixes_of(path: Path) -> tuple[str, str]:
    """The suffix of a file without that of its compression, and that, in lower case.

    ```python
    >>> suffixes_of(Path("a.CSV.gz")), suffixes_of(Path("a"))
    (('.csv', '.gz'), ('', ''))

    ```
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSED else ""
    return suffixes[-1] if suffixes else "", compression


@contextlib.contextmanager
def opened_text(path: Path, newline: str | None = None) -> Iterator[IO[str]]:
    """A context with an open text file, decompressed, in which errors of reading name it and the line.

    Args:
        path (`Path`): the file; its name says how it is compressed.
        newline (`str`, *optional*): see [`open`].

    Raises:
        `InputError`: there is no such file, or it is damaged, or in another encoding.
    """
    compression = suffixes_of(path)[1]
    try:
        with path_errors(path), _opened(path, compression) as content:
            encoding = "utf-16" if content.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            yield io.TextIOWrapper(content, encoding, newline=newline)
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}, {error.reason}"
        location = f"{path}:{_breaking_line(path, compression)}"
        raise InputError(
            f"{location}: cannot be read as UTF-8 text ({byte}); convert the file with iconv -f ENCODING -t UTF-8, "
            "where ENCODING is the one that it was written in, which its author knows"
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        location = f"{path}:{_breaking_line(path, compression)}"
        raise InputError(f"{location}: cannot be read as gzip ({error}); copy or download it again") from None
    except OSError as error:
        raise read_error(path, error) from None


def read_error(path: Path, error: OSError) -> InputError:
    """The error of a file that cannot be read to its end, or not at all."""
    if is_path_error(error):
        return path_error(path, error)
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}: no such file")
    kind = "".join(f" as {suffix[1:]}" for suffix in suffixes_of(path)[1:] if suffix)
    reason = error.strerror or first_line(error)
    return InputError(f"{path}: cannot be read{kind} ({reason}); copy or download it again")


def lines_of_text(path: Path, file: Iterable[str]) -> Iterator[str]:
    """The lines of an open text file.

    Raises:
        `InputError`: a line has a NUL character.
    """
    for number, line in enumerate(file, start=1):
        if "\0" in line:
            raise InputError(
                f"{path}:{number}: has a NUL character, which no text has; convert UTF-16 or UTF-32, for example with "
                "iconv -f UTF-16LE -t UTF-8, or copy a damaged file again"
            )
        yield line


class _Decompressed(io.RawIOBase):
    """The bytes of a compressed file, which must not be out of proportion to it."""

    def __init__(self, path: Path, file: Any):
        self._path, self._stored, self._count, self._file = path, path.stat().st_size, 0, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read1(len(buffer))
        self._count += len(content)
        check_expansion(self._path, self._stored, self._count)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def _opened(path: Path, compression: str) -> io.BufferedReader:
    """A file of bytes, decompressed."""
    if not compression:
        return path.open("rb")
    import pyarrow

    file = gzip.GzipFile(path) if compression == ".gz" else pyarrow.input_stream(path, compression="zstd")
    return io.BufferedReader(_Decompressed(path, file))


def _breaking_line(path: Path, compression: str) -> int:
    """The line, counted from 1, at which a file cannot be decoded; it is read again to find out."""
    number = 1
    with contextlib.suppress(UnicodeDecodeError, EOFError, OSError, zlib.error), _opened(path, compression) as file:
        for line in file:
            line.decode("utf-8")
            number += 1
    return number

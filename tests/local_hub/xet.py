"""What a client uploads by Xet: xorbs (many chunks of files, compressed) and shards (which chunks make which file).

The formats are those of https://huggingface.co/docs/xet/xorb and https://huggingface.co/docs/xet/shard. When a shard
arrives, its files are put together from their chunks and stored whole, by SHA-256, like those that come by Git LFS.
So everything else on this server knows nothing of Xet, and clients download by plain HTTP. Xorbs are kept, because a
client remembers which chunks it has sent and refers to them later.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import lz4.frame

from .repositories import Contents, Refusal

_ENTRY = 48  # bytes of every header and entry in a shard
_BOOKEND = b"\xff" * 32  # in the place of the hash, after the last file
_HAS_VERIFICATION, _HAS_METADATA = 1 << 31, 1 << 30


@dataclass(frozen=True)
class Segment:
    """Consecutive chunks of one xorb, which are consecutive bytes of a file."""

    xorb: str
    size: int
    first: int
    end: int


def files_of(shard: bytes) -> Iterator[list[Segment]]:
    """The segments of each file in a shard.

    Raises:
        `Refusal`: it is no shard, or it is truncated.
    """
    if not shard.startswith(b"HFRepoMetaData"):
        raise Refusal(400, "not a shard")
    position = _ENTRY
    while True:
        header = _entry(shard, position)
        if header[:32] == _BOOKEND:
            return
        flags, count = _number(header, 32), _number(header, 36)
        rows = [_entry(shard, position + _ENTRY * (1 + number)) for number in range(count)]
        yield [Segment(_hash(row[:32]), _number(row, 36), _number(row, 40), _number(row, 44)) for row in rows]
        entries = 1 + count * (2 if flags & _HAS_VERIFICATION else 1) + (1 if flags & _HAS_METADATA else 0)
        position += _ENTRY * entries


def store_files(contents: Contents, shard: bytes) -> None:
    """Put the files of a shard together and store each by its SHA-256.

    Raises:
        `Refusal`: a xorb is missing or malformed.
    """
    for segments in files_of(shard):
        with contents.writing() as (file, keep):
            sha256 = hashlib.sha256()
            for segment in segments:
                size = 0
                for chunk in _chunks(contents.read(xorb_name(segment.xorb)), segment.first, segment.end):
                    file.write(chunk)
                    sha256.update(chunk)
                    size += len(chunk)
                if size != segment.size:
                    raise Refusal(400, f"chunks of xorb {segment.xorb} have {size} bytes, not {segment.size}")
            keep(sha256.hexdigest())


def xorb_name(identifier: str) -> str:
    """The name under which a xorb is stored."""
    return f"{identifier}.xorb"


def _chunks(xorb: bytes, first: int, end: int) -> Iterator[bytes]:
    """The chunks with the numbers `first` to `end - 1`; each has a header of 8 bytes."""
    position = 0
    for number in range(end):
        header = xorb[position : position + 8]
        if len(header) < 8 or header[0] != 0:
            raise Refusal(400, f"a xorb has {number} chunks, fewer than {end}")
        compressed, scheme = int.from_bytes(header[1:4], "little"), header[4]
        data = xorb[position + 8 : position + 8 + compressed]
        position += 8 + compressed
        if number >= first:
            chunk = _decompressed(data, scheme)
            if len(chunk) != int.from_bytes(header[5:8], "little"):
                raise Refusal(400, f"chunk {number} of a xorb has another size than its header says")
            yield chunk


def _decompressed(data: bytes, scheme: int) -> bytes:
    if scheme == 0:
        return data
    if scheme not in (1, 2):
        raise Refusal(400, f"compression scheme {scheme} of a chunk is unknown")
    try:
        content = lz4.frame.decompress(data)
    except RuntimeError as error:
        raise Refusal(400, f"a chunk cannot be decompressed: {error}") from None
    if scheme == 1:
        return content
    # Scheme 2 groups bytes 0, 4, 8, ..., then 1, 5, 9, ..., and so on, which compresses numbers of four bytes better.
    whole, position = bytearray(len(content)), 0
    for group in range(4):
        size = len(range(group, len(content), 4))
        whole[group::4] = content[position : position + size]
        position += size
    return bytes(whole)


def _entry(shard: bytes, position: int) -> bytes:
    found = shard[position : position + _ENTRY]
    if len(found) < _ENTRY:
        raise Refusal(400, "the shard is truncated")
    return found


def _number(entry: bytes, position: int) -> int:
    return int.from_bytes(entry[position : position + 4], "little")


def _hash(digest: bytes) -> str:
    """A hash as it is written in addresses: four numbers of 64 bits."""
    return "".join(f"{int.from_bytes(digest[first : first + 8], 'little'):016x}" for first in range(0, 32, 8))

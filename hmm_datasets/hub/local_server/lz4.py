"""Decompression of LZ4 frames, in which Xet sends chunks of up to 128 KiB.

The format is that of https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md, and of the blocks in it
https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md. Checksums are not compared: whoever uses this compares the
SHA-256 of whole files. Time is linear in the number of matches, some 15 MB per second of text.
"""

_MAGIC = b"\x04\x22\x4d\x18"


def decompress(frame: bytes) -> bytes:
    """The content of a frame.

    Raises:
        `ValueError`: it is not a frame of LZ4, or it is truncated.
    """
    if frame[:4] != _MAGIC:
        raise ValueError("not a frame of LZ4")
    flags = frame[4]
    position = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)  # with the optional size and dictionary
    content = bytearray()
    try:
        while size := int.from_bytes(_taken(frame, position, 4), "little"):
            position += 4
            stored, size = size >> 31, size & 0x7FFFFFFF
            block = _taken(frame, position, size)
            position += size + (4 if flags & 0x10 else 0)  # with the optional checksum of the block
            if stored:
                content += block
            else:
                _append_block(content, block)
    except IndexError:
        raise ValueError("the frame of LZ4 is truncated") from None
    return bytes(content)


def _taken(data: bytes, position: int, size: int) -> bytes:
    found = data[position : position + size]
    if len(found) < size:
        raise IndexError
    return found


def _append_block(content: bytearray, block: bytes) -> None:
    """Append what a compressed block has: literal bytes, each followed by a copy of something before it."""
    position, end = 0, len(block)
    while position < end:
        token = block[position]
        position += 1
        literals = token >> 4
        if literals == 15:
            extra, position = _length(block, position)
            literals += extra
        content += block[position : position + literals]
        position += literals
        if position >= end:  # the last sequence has no match
            return
        distance = block[position] | block[position + 1] << 8
        position += 2
        length = token & 15
        if length == 15:
            extra, position = _length(block, position)
            length += extra
        length += 4
        start = len(content) - distance
        if distance == 0 or start < 0:
            raise ValueError("a match of LZ4 begins before the content")
        if distance >= length:
            content += content[start : start + length]
        else:  # it overlaps what it appends, and so repeats itself
            pattern = content[start:]
            content += (pattern * (length // distance + 1))[:length]


def _length(block: bytes, position: int) -> tuple[int, int]:
    """The rest of a length, as a sum of bytes that ends with the first one below 255, and the position after it."""
    total = 0
    while True:
        value = block[position]
        position += 1
        total += value
        if value < 255:
            return total, position

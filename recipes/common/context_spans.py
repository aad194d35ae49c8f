"""Numbers of symbols of context by powers of two, at which experiments show means."""


def context_spans(length: int) -> list[tuple[int, int]]:
    """Numbers of symbols of context that are averaged together: from one power of two to the next.

    ```python
    >>> context_spans(9)
    [(1, 2), (2, 4), (4, 8), (8, 9)]

    ```
    """
    edges = [1]
    while edges[-1] * 2 < length:
        edges.append(edges[-1] * 2)
    return list(zip(edges, [*edges[1:], length], strict=True))

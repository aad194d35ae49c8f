"""Quantities formatted as text in suitable units."""

import time


def format_bytes(count: float) -> str:
    """A number of bytes in a suitable decimal unit.

    ```python
    >>> format_bytes(999), format_bytes(12_345_678)
    ('999 bytes', '12.3 MB')

    ```
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def format_number(value: float, form: str) -> str:
    """A number in a format of Python; what is rounded to zero has no minus.

    ```python
    >>> format_number(-0.00001, ".4f"), format_number(-0.00001, "+.2f"), format_number(-1234, ",.0f")
    ('0.0000', '+0.00', '-1,234')

    ```
    """
    text = format(value, form)
    return text if text.strip("+-0.") else format(0, form)


def counted(count: int, noun: str) -> str:
    """A number of things.

    ```python
    >>> counted(1, "evaluation"), counted(2000, "file")
    ('1 evaluation', '2,000 files')

    ```
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_duration(seconds: float) -> str:
    """A duration in its two largest units.

    ```python
    >>> [format_duration(seconds) for seconds in (3.21, 150, 7500, 200_000)]
    ['3.2 s', '2.5 min', '2 h 5 min', '2 d 7 h']

    ```
    """
    if seconds < 3600:
        return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min"


def format_date(moment: float) -> str:
    """A Unix time as local date and time.

    ```python
    >>> format_date(0.0)[-5:-3].isdigit()
    True

    ```
    """
    return time.strftime("%a %d %b %H:%M", time.localtime(moment))


def describe_weights(weights: dict[str, str]) -> str:
    """The types of a model's weights in words.

    Args:
        weights (`dict`): see [`~hmm_datasets.training.precision.types_of_weights`].

    ```python
    >>> describe_weights({"weights": "float32", "frozen": "bfloat16"})
    'weights and moments in float32, those that are not trained in bfloat16'

    ```
    """
    frozen = f", those that are not trained in {weights['frozen']}" if "frozen" in weights else ""
    return f"weights and moments in {weights['weights']}{frozen}"

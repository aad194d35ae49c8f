"""The check of sizes, lengths, counts, seeds and indices: integers within bounds, of any integer type; and of numbers.

A float is none, whatever its value: one that was rounded, or divided, would be cut off or fail somewhere later. Nor is
a boolean, which is a switch that was given in the place of a number.
"""

import math
import numbers
import operator
from typing import Any

from ..errors import InputError


def integer(name: str, value: Any, minimum: int, exponent: int) -> int:
    """`value` as an integer in `[minimum, 2**exponent)`."""
    # Python takes its booleans and those of torch and NumPy for 0 and 1, and drops the mask of an array without axes.
    is_boolean = isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")
    is_number = not is_boolean and not hasattr(value, "mask")
    try:
        number = operator.index(value) if is_number else -1
    except TypeError:
        number = -1
    if not minimum <= number < 1 << exponent:
        raise InputError(f"{name} is {value}; expected an integer in [{minimum}, 2**{exponent})")
    return number


def finite_number(name: str, value: Any, minimum: float = -math.inf) -> float:
    """`value` as a finite float, `minimum` or more; a text is none, although it may look like one."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= minimum):
        least = f", {minimum:g} or more" if math.isfinite(minimum) else ""
        raise InputError(f"{name} is {value!r}; expected a finite number{least}")
    return float(value)


def integer_range(name: str, value: Any, minimum: int, exponent: int) -> int | tuple[int, int]:
    """`value` as an integer in `[minimum, 2**exponent)`, or as two of them in order, a minimum and a maximum."""
    try:
        least, most = value
    except TypeError:
        return integer(name, value, minimum, exponent)
    except ValueError:
        raise InputError(f"{name} is {value}; expected an integer, or two, a minimum and a maximum") from None
    least, most = integer(f"{name}[0]", least, minimum, exponent), integer(f"{name}[1]", most, minimum, exponent)
    if least > most:
        raise InputError(f"{name} is {value}; expected a minimum, and then a maximum")
    return least, most

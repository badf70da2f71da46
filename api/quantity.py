"""Kubernetes quantities as exact integers.

Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
}
#: Larger values are cut: 4 PiB, or 4 billion cores. Two thousand of them on one node still add up within an int64.
MAX_VALUE = 2**52


@lru_cache(maxsize=65536)
def parse(quantity: str | int | float, *, milli: bool = False) -> int:
    """Parse a quantity to whole units (thousandths with ``milli``), rounded up, capped at ``MAX_VALUE``.

    :raises ValueError: the text is no quantity.
    """
    if isinstance(quantity, int) and not milli:
        return min(quantity, MAX_VALUE)
    text = str(quantity)
    try:
        if text[-2:] in _BINARY:
            value = Decimal(text[:-2]) * _BINARY[text[-2:]]
        elif text[-1:] in _DECIMAL and not text[-1:].isdigit():
            value = Decimal(text[:-1]) * _DECIMAL[text[-1:]]
        else:
            value = Decimal(text)
        if not value.is_finite():
            raise InvalidOperation
    except InvalidOperation as error:
        raise ValueError(f"not a quantity: {text!r}") from error
    scaled = value * 1000 if milli else value
    return min(int(scaled.to_integral_value(rounding=ROUND_CEILING)), MAX_VALUE)

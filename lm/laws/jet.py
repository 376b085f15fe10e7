"""Exact first and second derivatives of a law, by sparse second-order jets. Imports only NumPy.

A Jet is a float64 array together with its derivatives by numbered variables; NumPy's arithmetic
and the functions below work on it as on an array, so a law written once for predictions gives its
own gradient and Hessian. Only derivatives that are not zero are stored, and each broadcasts: for
Chinchilla's law five first and six second derivatives, which is faster than tracing it in JAX
would be to compile (measured in BUILD_NOTES.md).
"""

from typing import Any

import numpy as np

Array = np.ndarray


class Jet:
    """Value v, first derivatives g[i], second derivatives h[i, j] with i <= j, by variable."""

    __slots__ = ("v", "g", "h")

    def __init__(self, v: Any, g: dict[int, Any], h: dict[tuple[int, int], Any]):
        self.v, self.g, self.h = v, g, h

    def __neg__(self) -> "Jet":
        return Jet(-self.v, {i: -d for i, d in self.g.items()}, {k: -d for k, d in self.h.items()})

    def __add__(self, other: Any) -> "Jet":
        if not isinstance(other, Jet):
            return Jet(self.v + other, self.g, self.h)
        return Jet(self.v + other.v, _merge(self.g, other.g), _merge(self.h, other.h))

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Jet":
        return self + (-other)

    def __rsub__(self, other: Any) -> "Jet":
        return (-self) + other

    def __mul__(self, other: Any) -> "Jet":
        if not isinstance(other, Jet):
            return _scaled(self, self.v * other, other)
        h = _merge(
            {k: d * other.v for k, d in self.h.items()}, {k: d * self.v for k, d in other.h.items()}
        )
        for i, di in self.g.items():
            for j, dj in other.g.items():
                key = (i, j) if i <= j else (j, i)
                term = 2.0 * di * dj if i == j else di * dj
                h[key] = h[key] + term if key in h else term
        g = _merge(
            {i: d * other.v for i, d in self.g.items()}, {i: d * self.v for i, d in other.g.items()}
        )
        return Jet(self.v * other.v, g, h)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Jet":
        return self * (1.0 / other)

    def __rtruediv__(self, other: Any) -> "Jet":
        inverse = 1.0 / self.v
        square = inverse * inverse
        return _chain(self, inverse, -square, 2.0 * square * inverse) * other

    def __pow__(self, other: Any) -> "Jet":
        if isinstance(other, Jet):
            return _exp(other * _log(self))
        p = np.asarray(other, dtype=np.float64)
        return _chain(self, self.v**p, p * self.v ** (p - 1.0), p * (p - 1.0) * self.v ** (p - 2.0))

    def __rpow__(self, other: Any) -> "Jet":
        return _exp(self * np.log(other))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        rule = _RULES.get(ufunc)
        if method != "__call__" or rule is None or kwargs:
            raise TypeError(f"a law may not use numpy.{ufunc.__name__}: lm/laws/jet.py lacks it")
        return rule(*inputs)


def variable(value: Array, index: int) -> Jet:
    """The jet of variable number `index` itself."""
    return Jet(value, {index: np.ones_like(value)}, {})


def _merge(a: dict, b: dict) -> dict:
    out = dict(a)
    for key, value in b.items():
        out[key] = out[key] + value if key in out else value
    return out


def _scaled(x: Jet, v: Any, factor: Any) -> Jet:
    return Jet(v, {i: d * factor for i, d in x.g.items()}, {k: d * factor for k, d in x.h.items()})


def _chain(x: Jet, value: Any, first: Any, second: Any) -> Jet:
    """The jet of f(x) from f, f' and f'' at x."""
    items = list(x.g.items())
    h = {k: d * first for k, d in x.h.items()}
    for a, (i, di) in enumerate(items):
        for j, dj in items[a:]:
            key = (i, j) if i <= j else (j, i)
            term = second * (di * dj)
            h[key] = h[key] + term if key in h else term
    return Jet(value, {i: d * first for i, d in items}, h)


def _exp(x: Jet) -> Jet:
    v = np.exp(x.v)
    items = list(x.g.items())
    h = dict(x.h)
    for a, (i, di) in enumerate(items):
        for j, dj in items[a:]:
            key = (i, j) if i <= j else (j, i)
            h[key] = h[key] + di * dj if key in h else di * dj
    return Jet(v, {i: d * v for i, d in items}, {k: d * v for k, d in h.items()})


def _log(x: Jet) -> Jet:
    inverse = 1.0 / x.v
    return _chain(x, np.log(x.v), inverse, -inverse * inverse)


def _log1p(x: Jet) -> Jet:
    inverse = 1.0 / (1.0 + x.v)
    return _chain(x, np.log1p(x.v), inverse, -inverse * inverse)


def _expm1(x: Jet) -> Jet:
    v = np.exp(x.v)
    return _chain(x, np.expm1(x.v), v, v)


def _logaddexp(a: Any, b: Any) -> Any:
    if isinstance(a, Jet) and isinstance(b, Jet):
        return b + _logaddexp(0.0, a - b)
    constant, x = (b, a) if isinstance(a, Jet) else (a, b)
    v = np.logaddexp(constant, x.v)
    share = np.exp(x.v - v)
    return _chain(x, v, share, share * (1.0 - share))


def _minimum(a: Any, b: Any) -> Any:
    """The smaller branch with its derivatives; one-sided where both are equal."""
    va, vb = (t.v if isinstance(t, Jet) else np.asarray(t, dtype=np.float64) for t in (a, b))
    first = np.asarray(va < vb, dtype=np.float64)
    second = 1.0 - first
    g: dict = {}
    h: dict = {}
    for t, mask in ((a, first), (b, second)):
        if isinstance(t, Jet):
            g = _merge(g, {i: d * mask for i, d in t.g.items()})
            h = _merge(h, {k: d * mask for k, d in t.h.items()})
    return Jet(np.minimum(va, vb), g, h)


_RULES: dict[Any, Any] = {
    np.add: lambda a, b: a + b if isinstance(a, Jet) else b + a,
    np.subtract: lambda a, b: a - b if isinstance(a, Jet) else b.__rsub__(a),
    np.multiply: lambda a, b: a * b if isinstance(a, Jet) else b * a,
    np.divide: lambda a, b: a / b if isinstance(a, Jet) else b.__rtruediv__(a),
    np.power: lambda a, b: a**b if isinstance(a, Jet) else b.__rpow__(a),
    np.negative: lambda a: -a,
    np.exp: _exp,
    np.log: _log,
    np.log1p: _log1p,
    np.expm1: _expm1,
    np.logaddexp: _logaddexp,
    np.minimum: _minimum,
}

"""A traced value, as the function of a program sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn, TypeAlias, cast

import numpy as np

from attngen import arithmetic, torch_protocol
from attngen.captures import as_array, read_table
from attngen.ir import elementwise as ew
from attngen.ir.core import Value, at
from attngen.ir.types import INDEX, ElementType, bound
from attngen.names import kind_of
from attngen.numpy_protocol import FUNCTIONS, INSTEAD, UFUNCS
from attngen.specs import array_dtype_name, show_shape
from attngen.tracing import Trace, current, is_tracing, user_error, user_loc

Like: TypeAlias = "Tensor | bool | int | float"
"""What the functions of the language take."""


class Tensor:
    """Stands for an array while a program is traced: named axes, an element type, and no elements yet.

    Takes Python's operators with numbers and other traced values, and NumPy's elementwise functions.
    """

    __slots__ = ("_trace", "_value")
    __hash__: ClassVar[None]  # pyright: ignore[reportIncompatibleMethodOverride]  (== makes a traced value)

    def __init__(self, value: Value, trace: Trace) -> None:
        self._value, self._trace = value, trace

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes. Their order has no meaning."""
        return self._value.names

    @property
    def dtype(self) -> str:
        """The element type by its NumPy name."""
        return dtype_name(self._value.element)

    def extent(self, axis: str) -> int:
        """The length of an axis, as a number."""
        extents = self._value.tensor.extents
        if axis not in extents:
            raise user_error(f"extent: there is no axis {axis!r}", help=f"the axes are {', '.join(extents) or '(none)'}")
        if not isinstance(extents[axis], int):
            raise user_error(
                f"extent: axis {axis} has a runtime extent of at most {bound(extents[axis])}, which is no number yet",
                help="compile with a fixed extent for this axis",
            )
        return bound(extents[axis])

    def __repr__(self) -> str:
        shown = " ".join(f"{name}={extent}" for name, extent in self._value.tensor.axes)
        return f"<traced value {shown or 'without axes'}, {self.dtype}>"

    # ---- arithmetic

    def __add__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.Add), self, counted(other))

    def __radd__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.Add), counted(other), self)

    def __sub__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.Sub), self, counted(other))

    def __rsub__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.Sub), counted(other), self)

    def __mul__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.Mul), self, other)

    def __rmul__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.Mul), other, self)

    def __truediv__(self, other: Like) -> Tensor:
        return apply(arithmetic.divide, self, other)

    def __rtruediv__(self, other: Like) -> Tensor:
        return apply(arithmetic.divide, other, self)

    def __floordiv__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.FloorDiv), self, other)

    def __rfloordiv__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.FloorDiv), other, self)

    def __mod__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.Mod), self, other)

    def __rmod__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.binary, ew.Mod), other, self)

    def __pow__(self, other: Like) -> Tensor:
        return apply(arithmetic.power, self, other)

    def __rpow__(self, other: Like) -> Tensor:
        return apply(arithmetic.power, other, self)

    def __neg__(self) -> Tensor:
        return apply(partial(arithmetic.signed, ew.Neg), self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return apply(partial(arithmetic.signed, ew.Abs), self)

    def __round__(self, digits: int | None = None) -> Tensor:
        return apply(arithmetic.round_to, self, digits or 0)

    def __floor__(self) -> Tensor:
        return apply(partial(arithmetic.unary, ew.Floor), self)

    # ---- comparisons and logic

    def __eq__(self, other: Like) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return apply(partial(arithmetic.compare, "eq"), self, counted(other))

    def __ne__(self, other: Like) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return apply(partial(arithmetic.compare, "ne"), self, counted(other))

    def __lt__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.compare, "lt"), self, counted(other))

    def __le__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.compare, "le"), self, counted(other))

    def __gt__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.compare, "gt"), self, counted(other))

    def __ge__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.compare, "ge"), self, counted(other))

    def __and__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.logic, ew.And), self, other)

    def __rand__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.logic, ew.And), other, self)

    def __or__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.logic, ew.Or), self, other)

    def __ror__(self, other: Like) -> Tensor:
        return apply(partial(arithmetic.logic, ew.Or), other, self)

    def __xor__(self, other: Like) -> Tensor:
        return apply(arithmetic.differ, self, other)

    def __rxor__(self, other: Like) -> Tensor:
        return apply(arithmetic.differ, other, self)

    def __invert__(self) -> Tensor:
        return apply(arithmetic.negation, self)

    # ---- NumPy

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Tensor:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        if method != "__call__" or ufunc not in UFUNCS:
            raise no_such_function(name)
        if kwargs:
            raise user_error(f"np.{name} takes no {', '.join(kwargs)}= on a traced value")
        return apply(UFUNCS[ufunc], *(map(counted, inputs) if name in COUNTED else inputs))

    def __array_function__(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        if func not in FUNCTIONS:
            raise no_such_function(func.__name__)
        given = {k: v for k, v in kwargs.items() if v is not None}
        if given:
            raise user_error(f"np.{func.__name__} takes no {', '.join(given)}= on a traced value")
        if func is np.where and len(args) != 3:
            raise user_error("np.where on a traced value needs what to take where true and where false: np.where(c, x, y)")
        return apply(FUNCTIONS[func], *args)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise user_error("a traced value has no elements yet, so it is no NumPy array", help="use attngen's functions on it")

    # ---- torch

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Tensor:
        name: str = getattr(func, "__name__", "")
        given = {k: v for k, v in (kwargs or {}).items() if v is not None and k not in ("device", "memory_format")}
        if name == "__getitem__":
            table, key = args
            keys: tuple[Any, ...] = cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (key,)
            return apply(lambda *at: read_table(as_array(table, "captured"), at), *keys)
        function = torch_protocol.find(name)
        if function is None:
            known = ", ".join(sorted(torch_protocol.NAMES))
            raise user_error(f"torch.{name} does not work on traced values", help=f"these do: {known}")
        return call(f"torch.{name}", function, *(map(counted, args) if name.strip("_") in COUNTED else args), **given)

    # ---- what a value without elements cannot do

    def __bool__(self) -> NoReturn:
        raise user_error(
            "Python control flow on a traced value: use attngen.where",
            help="combine conditions with & | ~ in place of and, or, not and a < x < b",
        )

    def __iter__(self) -> NoReturn:
        raise user_error(
            "a traced value cannot be iterated over", help="functions such as attngen.reduce_sum take a whole axis"
        )

    def __len__(self) -> NoReturn:
        raise user_error("a traced value has no len()", help=f"use x.extent({(*self.axes, 'd')[0]!r})")

    def __float__(self) -> NoReturn:
        raise user_error(
            "a traced value is no number yet", help="use attngen.sqrt, attngen.exp, … in place of math's functions"
        )

    __int__ = __index__ = __complex__ = __float__

    def __getitem__(self, key: object) -> NoReturn:
        raise user_error(
            "a traced value cannot be indexed or sliced",
            help='select by coordinate: attngen.where(attngen.index("j") < 4, x, 0.0)',
        )

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise user_error("a traced value cannot be assigned to", help="attngen.where(condition, new, x) makes a new value")

    def __matmul__(self, other: object) -> NoReturn:
        raise user_error("@ does not say which axis is summed", help='use attngen.contract(a, b, over="d")')

    __rmatmul__ = __matmul__

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        method = torch_protocol.METHODS.get(name)
        if method is not None:
            return partial(call, name, method, self)
        instead = INSTEAD.get("transpose" if name == "T" else "shape" if name in ("ndim", "size") else name)
        raise AttributeError(f"a traced value has no attribute {name!r}{f': use {instead}' if instead else ''}")


def no_such_function(name: str) -> Exception:
    instead = INSTEAD.get(name, f"attngen.{name}" if name in ("sigmoid", "rsqrt", "softmax", "logsumexp") else "")
    functions: list[Any] = [*UFUNCS, *FUNCTIONS]
    known = ", ".join(sorted({f"np.{f.__name__}" for f in functions}))
    return user_error(f"np.{name} does not work on traced values", help=f"use {instead}" if instead else f"these do: {known}")


def apply(function: Callable[..., Value], *operands: object) -> Tensor:
    """A function on values and numbers, as one on traced values and numbers, at the user's line."""
    loc = user_loc()
    if not is_tracing():
        # Said of the value where there is one: it has outlived its program.
        for x in operands:
            unwrap(x)
    trace = current()
    with at(loc):
        return Tensor(function(*map(unwrap, operands)), trace)


def call(what: str, function: Callable[..., Value], *args: Any, **kwargs: Any) -> Tensor:
    """A function as torch and NumPy call it, with its own keywords: traced values among them are unwrapped."""

    def called(*_: object) -> Value:
        def plainly(x: Any) -> Any:
            return unwrap(x) if isinstance(x, Tensor) else plain(x)

        try:
            return function(*map(plainly, args), **{k: plainly(x) for k, x in kwargs.items()})
        except TypeError as e:
            raise user_error(f"{what} on a traced value: {e}".replace("<lambda>()", what)) from None

    return apply(called, *(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)))


def unwrap(x: Any) -> arithmetic.Operand:
    """A traced value's IR value, a number as it is."""
    if isinstance(x, Tensor):
        trace = x._trace  # pyright: ignore[reportPrivateUsage]
        if not is_tracing() or current() is not trace:
            raise user_error(f"a traced value is used outside its program @{trace.name}", help="return it from the program")
        return x._value  # pyright: ignore[reportPrivateUsage]
    number = plain(x)
    if isinstance(number, bool | int | float):
        return number
    shape = getattr(x, "shape", None)
    if shape is not None:
        raise user_error(
            f"a {kind_of(x)} of shape {show_shape(tuple(shape))} met a traced value", help="make it an input of the program"
        )
    raise user_error(f"expected a traced value or a number, got {kind_of(x)}")


COUNTED = frozenset(
    ("add", "radd", "sub", "rsub", "subtract", "lt", "le", "gt", "ge", "eq", "ne", "less", "less_equal", "greater")
) | {"greater_equal", "equal", "not_equal"}
"""Functions of NumPy and torch by which a whole number moves or limits a coordinate."""


def counted(x: Any) -> Any:
    """A captured array or torch tensor that is one whole number, such as an offset, is an input: it may be another one in the
    next call, for the same kernel. Divisors, exponents and floats are constants of the program."""
    known: object = x
    if isinstance(known, Tensor | np.generic | int | float) or getattr(known, "shape", None) != ():
        return x
    array = as_array(x, "captured")
    return Tensor(read_table(array, ()), current()) if array.dtype.kind in "iu" and is_tracing() else x


def plain(x: Any) -> Any:
    """A NumPy scalar, or array or torch tensor without dimensions, as a Python number."""
    return x.item() if getattr(x, "shape", None) == () and not isinstance(x, Tensor) and hasattr(x, "item") else x


def unwrap_traced(x: object, what: str) -> Value:
    """A traced value's IR value; a number is an error."""
    operand = unwrap(x)
    if isinstance(operand, Value):
        return operand
    raise user_error(f"{what}: expected a traced value, got the number {operand}")


def dtype_name(element: ElementType) -> str:
    return "index" if element is INDEX else array_dtype_name(element)

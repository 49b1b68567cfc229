"""The ``--where`` filter: comparisons over the columns of a run table, parsed and walked, never evaluated as Python.

Grammar: comparisons (chained ones too) of a column with a number, a text in quotes or another column; ``in`` and
``not in`` with a list in brackets; ``and``, ``or``, ``not`` and brackets around them. For example
``recurrences in (2, 4) and 1e18 <= budget < 1e19 and recipe == 'baseline'``.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import warnings
from collections.abc import Callable
from functools import reduce
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.errors import UsageError

_GRAMMAR = "column < number, column == 'text', column in (a, b), joined by and, or, not"
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUAL: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_NESTING = "the filter is nested too deeply"


def filter_runs(frame: pd.DataFrame, where: str) -> NDArray[np.bool_]:
    """Which rows a filter keeps.

    Parameters
    ----------
    frame : DataFrame
        A run table; every column may be named in the filter.
    where : str
        The filter, see the module's text. A comparison with a missing value is false, ``!=`` and ``not in`` included.

    Returns
    -------
    Boolean array of shape (rows,).

    Raises
    ------
    UsageError
        The filter cannot be parsed, names no column of the table, or compares a number with a text.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "2or" is odd but clear
            tree = ast.parse(where.strip(), mode="eval")
    except SyntaxError as error:
        raise UsageError(
            f"--where {where!r} cannot be read{_pointer(error)}", allowed=_GRAMMAR, do=_syntax_hint(where)
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte; a thousand brackets
        raise UsageError(f"--where cannot be read: {error or _NESTING}", allowed=_GRAMMAR) from error
    try:
        return _Filter(frame, where.strip()).condition(tree.body)
    except RecursionError as error:
        raise UsageError(f"--where cannot be read: {_NESTING}", allowed=_GRAMMAR) from error


def columns_of(where: str) -> set[str]:
    """The names in a filter that `filter_runs` has taken."""
    return {node.id for node in ast.walk(ast.parse(where.strip(), mode="eval")) if isinstance(node, ast.Name)}


class _Filter:
    """Walks the parsed filter over one frame."""

    def __init__(self, frame: pd.DataFrame, where: str) -> None:
        self.frame = frame
        self.where = where

    def condition(self, node: ast.expr) -> NDArray[np.bool_]:
        """A part that is true or false for each row."""
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                return reduce(operator.and_, map(self.condition, values))
            case ast.BoolOp(values=values):
                return reduce(operator.or_, map(self.condition, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self.condition(operand)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                sides = [left, *comparators]
                links = zip(sides[:-1], ops, sides[1:], strict=True)
                return reduce(operator.and_, [self.comparison(node, *link) for link in links])
        hint = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            hint = "write and / or in place of & and |"
        elif isinstance(node, (ast.Name, ast.Constant)):
            hint = "compare it with something, as in recurrences > 1"
        self.refuse(node, "is not a comparison", hint)

    def comparison(self, whole: ast.expr, left: ast.expr, op: ast.cmpop, right: ast.expr) -> NDArray[np.bool_]:
        """One link of a comparison."""
        if not any(isinstance(side, ast.Name) for side in (left, right)):
            self.refuse(whole, "compares no column")
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.Tuple, ast.List)):
                self.refuse(right, "is no list", "put what is allowed in brackets, as in recurrences in (2, 4)")
            found = np.zeros(len(self.frame), dtype=bool)
            for item in right.elts:
                if not isinstance(self.literal(item), (float, str)):
                    self.refuse(item, "is neither a number nor a text in quotes")
                found |= self.compare(whole, left, operator.eq, item)
            return found if isinstance(op, ast.In) else ~found & ~_missing(self.value(left))
        compare = _ORDER.get(type(op)) or _EQUAL.get(type(op))
        if compare is None:
            self.refuse(whole, "uses an operator that a filter does not have")
        return self.compare(whole, left, compare, right)

    def compare(
        self, whole: ast.expr, left: ast.expr, compare: Callable[[Any, Any], Any], right: ast.expr
    ) -> NDArray[np.bool_]:
        """Both sides compared row by row."""
        first, second = self.value(left), self.value(right)
        if _is_text(first) != _is_text(second):
            self.refuse(whole, "compares a number with a text", "texts stand in quotes, numbers do not")
        if _is_text(first) and compare in _ORDER.values():
            self.refuse(whole, "orders texts", "texts know ==, != and in")
        known = ~(_missing(first) | _missing(second))
        result = np.zeros(len(self.frame), dtype=bool)
        pick = [side[known] if isinstance(side, np.ndarray) else side for side in (first, second)]
        result[known] = np.asarray(compare(*pick), dtype=bool)
        return result

    def value(self, node: ast.expr) -> NDArray[Any] | float | str:
        """A column's values, or a literal."""
        if isinstance(node, ast.Name):
            return self.column(node)
        literal = self.literal(node)
        if literal is None:
            self.refuse(node, "is neither a column, a number nor a text in quotes")
        return literal

    def column(self, node: ast.Name) -> NDArray[Any]:
        """The values of a column: float64, or objects where they are texts."""
        columns = [str(column) for column in self.frame.columns]
        if node.id not in columns:
            near = difflib.get_close_matches(node.id, columns, n=1)
            self.refuse(
                node,
                "is no column" + (f", did you mean {near[0]}?" if near else ""),
                "texts to compare with stand in quotes",
                allowed=", ".join(columns),
            )
        values = self.frame[node.id]
        return values.to_numpy(dtype=np.float64 if pd.api.types.is_numeric_dtype(values) else object, na_value=np.nan)

    def literal(self, node: ast.expr) -> float | str | None:
        """A number or text, None for everything else."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as number):
                try:
                    return float(number)
                except OverflowError:
                    return math.inf
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                negated = self.literal(node.operand)
                return -negated if isinstance(negated, float) else None
        return None

    def refuse(self, node: ast.expr, problem: str, do: str | None = None, *, allowed: str = _GRAMMAR) -> NoReturn:
        """Name the part of the filter at fault."""
        part = ast.get_source_segment(self.where, node) or self.where
        where = "" if part == self.where else f" (in --where {self.where!r})"
        raise UsageError(f"--where: {part!r} {problem}{where}", allowed=allowed, do=do)


def _is_text(value: NDArray[Any] | float | str) -> bool:
    return value.dtype == object if isinstance(value, np.ndarray) else isinstance(value, str)


def _missing(value: NDArray[Any] | float | str) -> NDArray[np.bool_] | np.bool_:
    return np.asarray(pd.isna(value)) if isinstance(value, np.ndarray) else np.bool_(False)


def _pointer(error: SyntaxError) -> str:
    return f" at character {error.offset}" if error.offset else ""


def _syntax_hint(where: str) -> str | None:
    if not where.strip():
        return "leave --where out to keep every run"
    bare = where.replace("==", "").replace("<=", "").replace(">=", "").replace("!=", "")
    return "write == to compare" if "=" in bare else None

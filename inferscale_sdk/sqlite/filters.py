"""Metadata filters, as conditions on a JSON column.

    {"topic": "food"}                      the key's value equals
    {"year": {"gte": 2020, "lt": 2024}}    all operators hold
    {"a": 1, "b": 2}                       all keys hold

| operator | holds when the key is there and its value … |
|---|---|
| ``eq`` | equals; numbers equal numbers (1 and 1.0), never strings or booleans |
| ``ne`` | does not equal; **also holds when the key is absent** |
| ``gt gte lt lte`` | compares, number with number and string with string (by code point) |
| ``in`` | equals one of a list; an empty list matches nothing |
| ``exists`` | is there (``True``, JSON null included) or is absent (``False``) |

Keys are top-level keys, taken literally: ``$``, dots, quotes and brackets mean themselves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.sqlite.clauses import Clause, all_of
from inferscale_sdk.unicode import require_unicode

__all__ = ["filter_clause"]

_INT64 = 2**63
_COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_NUMBER = "m.type IN ('integer', 'real')"
_TEXT = "m.type = 'text'"


def filter_clause(filters: Mapping[str, Any] | None, column: str) -> Clause:
    """Rows whose metadata satisfy ``filters``.

    Args:
        filters: See the module's text; ``None`` or empty is true for every row.
        column: The JSON column, e.g. ``fact.metadata``; never user input.

    Raises:
        ConfigurationError: A filter is malformed.
    """
    if filters is None:
        return Clause("1")
    if not isinstance(filters, Mapping):
        raise ConfigurationError(f"filters={filters!r} is not a mapping of keys to conditions")
    clauses = []
    for key, condition in filters.items():
        if not isinstance(key, str):
            raise ConfigurationError(f"filter key {key!r} is not a string")
        require_unicode(key, f"filter key {key!r}")
        operators = condition if isinstance(condition, Mapping) else {"eq": condition}
        if not operators:
            raise ConfigurationError(
                f"filter {key!r} has no operator; use one of {', '.join(_OPERATORS)}"
            )
        for name, value in operators.items():
            build = _OPERATORS.get(name) if isinstance(name, str) else None
            if build is None:
                raise ConfigurationError(
                    f"filter {key!r} uses the unknown operator {name!r}; "
                    f"use one of {', '.join(_OPERATORS)}"
                )
            clauses.append(build(key, value, column))
    return all_of(clauses)


def _some(key: str, test: Clause, column: str) -> Clause:
    return Clause(
        # The column is ours; the key and the values are parameters.
        f"EXISTS (SELECT 1 FROM json_each({column}) AS m WHERE m.key = ? AND {test.sql})",  # noqa: S608
        (key, *test.params),
    )


def _not(clause: Clause) -> Clause:
    return Clause(f"NOT {clause.sql}", clause.params)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: float, key: str) -> int | float:
    if not math.isfinite(value):
        raise ConfigurationError(f"filter {key!r} compares with {value!r}, which JSON cannot hold")
    # SQLite reads JSON integers beyond 64 bits as floating point, and so do we.
    return value if -_INT64 <= value < _INT64 else float(value)


def _scalar_test(value: object, key: str) -> Clause:
    if value is None:
        return Clause("m.type = 'null'")
    if isinstance(value, bool):
        return Clause("m.type = 'true'" if value else "m.type = 'false'")
    if _is_number(value):
        return Clause(f"{_NUMBER} AND m.value = ?", (_number(value, key),))
    if isinstance(value, str):
        return Clause(f"{_TEXT} AND m.value = ?", (require_unicode(value, f"filter {key!r}"),))
    hint = ' for "one of these" write {"in": […]}' if isinstance(value, list | tuple | set) else ""
    raise ConfigurationError(
        f"filter {key!r} compares with a {type(value).__name__}; "
        f"only strings, numbers, booleans and None can be compared;{hint}".rstrip(";")
    )


def _equals(key: str, value: object, column: str) -> Clause:
    return _some(key, _scalar_test(value, key), column)


def _differs(key: str, value: object, column: str) -> Clause:
    return _not(_equals(key, value, column))


def _comparison(name: str) -> Callable[[str, Any, str], Clause]:
    def build(key: str, value: object, column: str) -> Clause:
        if _is_number(value):
            test = Clause(f"{_NUMBER} AND m.value {_COMPARISONS[name]} ?", (_number(value, key),))
        elif isinstance(value, str):
            text = require_unicode(value, f"filter {key!r}")
            test = Clause(f"{_TEXT} AND m.value {_COMPARISONS[name]} ?", (text,))
        else:
            raise ConfigurationError(
                f"filter {key!r}: {name} compares numbers or strings, not {value!r}"
            )
        return _some(key, test, column)

    return build


def _one_of(key: str, values: object, column: str) -> Clause:
    if isinstance(values, str) or not isinstance(values, list | tuple | set | frozenset):
        raise ConfigurationError(f"filter {key!r}: in takes a list, not {values!r}")
    members = list(values)
    texts = [require_unicode(v, f"filter {key!r}") for v in members if isinstance(v, str)]
    numbers = [_number(v, key) for v in members if _is_number(v)]
    tests = [_scalar_test(v, key) for v in members if not (isinstance(v, str) or _is_number(v))]
    # One JSON parameter holds any number of members, so that no limit on parameters is met.
    for kind, some in ((_TEXT, texts), (_NUMBER, numbers)):
        if some:
            member = "m.value IN (SELECT value FROM json_each(?))"
            tests.append(Clause(f"{kind} AND {member}", (json.dumps(some),)))
    if not tests:
        return Clause("0")
    either = " OR ".join(f"({test.sql})" for test in tests)
    return _some(key, Clause(f"({either})", tuple(p for t in tests for p in t.params)), column)


def _exists(key: str, value: object, column: str) -> Clause:
    if not isinstance(value, bool):
        raise ConfigurationError(f"filter {key!r}: exists takes True or False, not {value!r}")
    there = _some(key, Clause("1"), column)
    return there if value else _not(there)


_OPERATORS: dict[str, Callable[[str, Any, str], Clause]] = {
    "eq": _equals,
    "ne": _differs,
    **{name: _comparison(name) for name in _COMPARISONS},
    "in": _one_of,
    "exists": _exists,
}

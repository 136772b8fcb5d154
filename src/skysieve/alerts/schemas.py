"""Avro schemas as lists of nodes, which `cpu_avro.read_record` follows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .surveys import FIELDS, NUMBERS, OBJECT, WORDS, Survey, survey_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Program", "SchemaError", "compile_schema", "read_schema"]

NULL, BOOLEAN, WHOLE, FLOAT, DOUBLE, BYTES, FIXED, RECORD, ARRAY, MAP, UNION = range(11)
"""Kinds of nodes."""
SIMPLE = {
    "null": NULL, "boolean": BOOLEAN, "int": WHOLE, "long": WHOLE, "enum": WHOLE, "float": FLOAT, "double": DOUBLE,
    "bytes": BYTES, "string": BYTES,
}  # fmt: skip
SKIP, NEW_ROW = -1, 100
"""Destination of a value: none, a position in `surveys.FIELDS`, or `surveys.OBJECT`; NEW_ROW plus a kind of rows for a
record that is a row."""
ACCEPTED = {
    "id": NUMBERS, "exposure": NUMBERS, "sign": WORDS,
    **dict.fromkeys(("t", "y", "dy"), ("float", "double", *NUMBERS)), "object": (*NUMBERS, *WORDS),
}  # fmt: skip
"""Types that a field may have, by the value that it holds; the survey has those of the band."""


class SchemaError(ValueError):
    """A schema that cannot be read, or that is not the schema of an alert."""


@dataclass(frozen=True)
class Program:
    """A schema for `cpu_avro.read_record`.

    Attributes
    ----------
    survey : Survey
    nodes : int64 array, shape (n, 4)
        Kind; first child; number of children, or size of a fixed value; destination of the value.
    children : int64 array
        Numbers of nodes.
    """

    survey: Survey
    nodes: NDArray[np.int64]
    children: NDArray[np.int64]


def read_schema(path: str | Path) -> Any:
    """Read a schema file; types that it names but does not define are read from files beside it.

    Such a file is named after the type and its namespace: ``lsst.v10_0.diaSource.avsc``.

    Raises
    ------
    OSError
        The file cannot be read.
    SchemaError
        It is not JSON or no Avro schema, or a type is defined nowhere.
    """
    path = Path(path)
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SchemaError(f"{path}: expected an Avro schema in JSON ({error})") from None
    try:
        return _inlined(schema, "", {}, path.parent)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(f"{path}: expected an Avro schema in JSON ({type(error).__name__} {error})") from None


def _inlined(schema: Any, space: str, known: dict[str, Any], folder: Path) -> Any:
    """The schema, in which the first occurrence of each type's name is replaced by its definition."""
    if isinstance(schema, list):
        return [_inlined(branch, space, known, folder) for branch in schema]
    if isinstance(schema, str):
        name = _full(schema, space)
        if schema in SIMPLE or name in known:
            return schema
        beside = folder / f"{name}.avsc"
        if not beside.is_file():
            raise SchemaError(f"the schema names the type {name}, which it does not define; there is no file {beside}")
        try:
            return _inlined(json.loads(beside.read_text(encoding="utf-8")), "", known, folder)
        except ValueError as error:
            raise SchemaError(f"{beside}: expected an Avro schema in JSON ({error})") from None
    schema = dict(schema)
    if "name" in schema:
        name = _full(schema["name"], schema.get("namespace", space))
        known[name] = schema
        space = name.rpartition(".")[0]
    for key in ("items", "values"):
        if key in schema:
            schema[key] = _inlined(schema[key], space, known, folder)
    if "fields" in schema:
        schema["fields"] = [f | {"type": _inlined(f["type"], space, known, folder)} for f in schema["fields"]]
    if isinstance(schema["type"], dict | list):
        schema["type"] = _inlined(schema["type"], space, known, folder)
    return schema


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def compile_schema(schema: Any) -> Program:
    """Translate the schema of a survey's packets.

    Parameters
    ----------
    schema : dict
        As JSON holds it.

    Raises
    ------
    SchemaError
        It is not a record with the fields of a survey, a field has a type that does not fit, or the schema is damaged.
    """
    try:
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise SchemaError("expected the schema of a record")
        names = {field["name"] for field in schema["fields"]}
        survey = survey_of(names)
        made = _Compiler(survey)
        made.add(schema, "", "packet", ())
        made.check(names)
    except SchemaError:
        raise
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(f"the schema is damaged: {type(error).__name__} {error}") from None
    except ValueError as error:
        raise SchemaError(str(error)) from None
    return Program(survey, np.array(made.nodes, np.int64).reshape(-1, 4), np.array(made.children, np.int64))


class _Compiler:
    """The nodes of a schema.

    A role is the meaning of a node in the survey: the packet, a list of sources or a source, a step on the path to the
    object, a value, or nothing.  A type that is used in two roles has nodes for each.
    """

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.nodes: list[list[int]] = []
        self.children: list[int] = []
        self.types: dict[str, tuple[Any, str]] = {}
        self.done: dict[tuple[str, str], int] = {}
        self.seen: set[tuple[Any, ...]] = set()

    def add(self, schema: Any, space: str, role: str, path: tuple[str, ...]) -> int:
        """Add a schema and its children, with a role and a path in the packet; return the number of its node."""
        if isinstance(schema, list):
            branches = [self.add(branch, space, role, path) for branch in schema]
            number = self._new([UNION, 0, 0, SKIP])
            self._attach(number, branches)
            return number
        if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            return self.add(schema["type"], space, role, path)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in SIMPLE and kind != "enum":
            return self._value(kind, role, path)
        if kind in ("array", "map"):
            number = self._new([ARRAY if kind == "array" else MAP, 0, 1, SKIP])
            inner = role if role.startswith("source") and kind == "array" else ""
            self._attach(number, [self.add(schema["items" if kind == "array" else "values"], space, inner, path)])
            return number
        if isinstance(schema, str):
            name = _full(schema, space)
            if name not in self.types and schema in self.types:
                name = schema
            if name not in self.types:
                raise SchemaError(f"the schema names the type {name}, which it does not define")
            schema, space = self.types[name]
        else:
            name = _full(schema["name"], schema.get("namespace", space))
            self.types[name] = (schema, space)
        return self._named(schema, name, role, path)

    def _named(self, schema: Any, name: str, role: str, path: tuple[str, ...]) -> int:
        if (name, role) in self.done:
            return self.done[name, role]
        if schema["type"] == "enum":
            return self._value("enum", role, path)
        if schema["type"] == "fixed":
            return self._new([FIXED, 0, max(0, int(schema["size"])), SKIP])
        if schema["type"] not in ("record", "error"):
            raise SchemaError(f"the type {schema['type']!r} of {name} is not an Avro type")
        source = role.partition(" ")[2] if role.startswith("source") else ""
        number = self._new([RECORD, 0, 0, NEW_ROW + int(source) if source else SKIP])
        self.done[name, role] = number
        space = name.rpartition(".")[0]
        self._attach(
            number,
            [
                self.add(field["type"], space, self._role(field["name"], role, path), (*path, field["name"]))
                for field in schema["fields"]
            ],
        )
        return number

    def _role(self, field: str, role: str, path: tuple[str, ...]) -> str:
        """The role of a field of a record."""
        wanted = self.survey.object
        if role in ("packet", "way") and (*path, field) == wanted[: len(path) + 1]:
            return "value object" if len(path) + 1 == len(wanted) else "way"
        if role == "packet" and field in self.survey.sources:
            return f"source {self.survey.sources[field]}"
        if role.startswith("source"):
            for key, name in self.survey.fields[int(role.partition(" ")[2])].items():
                if name == field:
                    return f"value {key} {role.partition(' ')[2]}"
        return ""

    def _value(self, kind: str, role: str, path: tuple[str, ...]) -> int:
        goal = SKIP
        if role.startswith("value") and kind != "null":
            _, key, *of = role.split()
            accepted = self.survey.bands if key == "band" else ACCEPTED[key]
            if kind not in accepted:
                raise SchemaError(f"{'.'.join(path)} is of type {kind}: expected {' or '.join(accepted)}")
            goal = OBJECT if key == "object" else FIELDS[key]
            self.seen.add((key, *map(int, of)))
        return self._new([SIMPLE[kind], 0, 0, goal])

    def check(self, names: set[str]) -> None:
        """Refuse a schema that lacks a needed value; all values except the exposure are needed."""
        needed: dict[tuple[Any, ...], str] = {("object",): ".".join(self.survey.object)}
        for source, kind in self.survey.sources.items():
            if source in names:
                fields = self.survey.fields[kind].items()
                needed = {(key, kind): f"{source}.{name}" for key, name in fields if key != "exposure"} | needed
        for key, name in needed.items():
            if key not in self.seen:
                raise SchemaError(f"the schema of {self.survey.name} has no field {name}")

    def _new(self, node: list[int]) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _attach(self, number: int, inner: list[int]) -> None:
        self.nodes[number][1:3] = len(self.children), len(inner)
        self.children += inner

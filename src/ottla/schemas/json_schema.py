"""Checks values against a JSON Schema. Values are text in JSON, and are encoded as they are.

Only the worker process imports this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urljoin

from jsonschema.exceptions import best_match
from jsonschema.validators import Draft7Validator, validator_for
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7


class JsonSchema:
    """A schema, with those that it refers to. Raises ValueError, or an error of the library, if it cannot be used.
    Nothing is fetched: a reference to anything else cannot be resolved."""

    def __init__(self, text: str, references: Iterable[tuple[str, str]]) -> None:
        schema = json.loads(text)
        base = schema.get("$id", "") if isinstance(schema, dict) else ""
        pairs: list[tuple[str, Resource[Any]]] = []
        for name, each in references:
            resource = Resource.from_contents(json.loads(each), default_specification=DRAFT7)
            pairs += [(name, resource), (urljoin(base, name), resource)]
        kind: Any = validator_for(schema, default=Draft7Validator)
        kind.check_schema(schema)
        self._validator = kind(schema, registry=Registry().with_resources(pairs))

    def require_fit(self, value: Any) -> None:
        """Raise ValueError with part of a sentence that names the field, unless the value fits."""
        error = best_match(self._validator.iter_errors(value))
        if error is not None:
            field = error.json_path.removeprefix("$").removeprefix(".")
            raise ValueError(f"the field {field}: {error.message}" if field else error.message)

"""Unions that are told apart by a tag: what is exported requires the tag, as what is enforced does.

Pydantic exports a tag that has a default as one that may be left out, and then finds no branch without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_MANY = {"properties", "patternProperties", "$defs"}
_DATA = {"default", "const", "enum", "examples", "required", "discriminator"}


def require_tags(root: Schema) -> None:
    """Requires the tags in the branches of all tagged unions of a schema that Pydantic generated.

    A definition that is referred to elsewhere too takes a value without the tag there, as before: the unions refer to
    a copy then, which has another name.
    """
    nodes = list(_schemas(root))
    uses = Counter(node["$ref"] for node in nodes if isinstance(node.get("$ref"), str))
    unions = [node for node in nodes if _tag(node)]
    wanted: dict[int, tuple[Schema, list[str]]] = {}
    for node in unions:
        for branch in _branches(node):
            wanted.setdefault(id(branch), (branch, []))[1].append(_tag(node))
    mapped = [(node, {branch.get("$ref"): branch for branch in node["oneOf"]}) for node in unions]
    groups: dict[tuple[str, tuple[str, ...]], list[Schema]] = {}
    for branch, tags in wanted.values():
        if "$ref" in branch:
            groups.setdefault((branch["$ref"], tuple(sorted(set(tags)))), []).append(branch)
        else:
            branch |= _requiring(branch, tags)
    for (ref, required), branches in groups.items():
        _define(root, ref, required, branches if uses[ref] > len(branches) else ())
    for node, before in mapped:
        mapping = node["discriminator"].get("mapping", {})
        mapping |= {tag: before[ref]["$ref"] for tag, ref in mapping.items() if isinstance(ref, str) and ref in before}


def _define(root: Schema, ref: str, tags: tuple[str, ...], apart: Any) -> None:
    """Requires the tags in a definition, or in a copy to which the branches `apart` refer from now on."""
    definitions, name = root["$defs"], ref.removeprefix("#/$defs/")
    requiring = _requiring(definitions[name], tags)
    if requiring == definitions[name]:
        return
    if apart:
        name = "_".join([name, *tags])
        while name in definitions:
            name += "_"
    for branch in apart:
        branch["$ref"] = f"#/$defs/{name}"
    definitions[name] = requiring


def _requiring(node: Schema, tags: Any) -> Schema:
    properties, required = node.get("properties", {}), node.get("required", [])
    missing = [tag for tag in dict.fromkeys(tags) if tag in properties and tag not in required]
    if not missing:
        return node
    tags = {tag: {key: item for key, item in properties[tag].items() if key != "default"} for tag in missing}
    return {**node, "properties": {**properties, **tags}, "required": [*missing, *required]}


def _tag(node: Schema) -> str:
    """The property that tells the branches apart; or nothing."""
    discriminator = node.get("discriminator")
    if not isinstance(discriminator, dict) or not isinstance(node.get("oneOf"), list):
        return ""
    return str(discriminator.get("propertyName", ""))


def _branches(node: Schema) -> Iterator[Schema]:
    """The branches, and those of the unions among them."""
    for branch in node["oneOf"]:
        if isinstance(branch.get("oneOf"), list):
            yield from _branches(branch)
        else:
            yield branch


def _schemas(node: object) -> Iterator[Schema]:
    """A schema and all in it, but for what is data."""
    if not isinstance(node, dict):
        return
    yield node
    for key, item in node.items():
        if key in _DATA:
            continue
        inner = item.values() if key in _MANY and isinstance(item, dict) else item if isinstance(item, list) else [item]
        for below in inner:
            yield from _schemas(below)

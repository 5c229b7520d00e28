"""Griffe extension: the plain prose of the docstrings as Markdown, and no attributes that only `__init__` names.

Most of the prose is Markdown already. Indented lines below a sentence become a list of arguments, a paragraph with
columns keeps its layout, a list gets an empty line before it, and the brackets of a formula are no link.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe


class PlainDocstrings(griffe.Extension):
    """What is changed when an object has been read from its source."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_class_members(self, *, node: ast.AST | griffe.ObjectNode, cls: griffe.Class, **kwargs: Any) -> None:
        """Leave out what `__init__` assigns to self without a docstring: it is state, not interface."""
        if not isinstance(node, ast.ClassDef):
            return
        fields = {ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)}
        fields |= {ast.unparse(target) for item in node.body if isinstance(item, ast.Assign) for target in item.targets}
        for name, member in list(cls.members.items()):
            if member.is_attribute and not member.is_alias and name not in fields and member.docstring is None:
                cls.del_member(name)


def to_markdown(text: str) -> str:
    """The docstring with its blocks in Markdown."""
    return "\n\n".join(_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", text))


def _paragraph(paragraph: str) -> str:
    lines = paragraph.split("\n")
    if lines[0].startswith("    "):
        return paragraph  # a code block
    if any(line.startswith(" " * 8) for line in lines):
        return "\n".join(["```text", *lines, "```"])
    bullets = any(line.startswith("- ") for line in lines)
    made: list[str] = []
    for line in map(_no_links, lines):
        inside = bool(made) and made[-1].startswith("- ")
        if line.startswith("- ") or (not bullets and re.match(r" {2,3}\S", line)):
            made += ["", _item(line)] if made and not inside else [_item(line)]
        elif inside and line.startswith(" "):
            made[-1] += " " + line.strip()
        else:
            made += ["", line] if inside else [line]
    return "\n".join(made)


def _no_links(line: str) -> str:
    """PRESETS[preset][name] and (a + b)[t](s) outside code, with escapes."""
    parts = re.split(r"(`[^`]*`)", line)
    parts[::2] = [re.sub(r"\]([\[(])", r"]\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _item(line: str) -> str:
    """- `name[t]` = what it is."""
    match = re.fullmatch(r" +([\w\[\]]+)( =|:)(.*)", line)
    return f"- `{match[1]}`{match[2]}{match[3]}" if match else f"- {line.strip().removeprefix('- ')}"

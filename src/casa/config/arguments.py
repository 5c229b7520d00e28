"""Parse command-line arguments into dataclasses with tyro; every parse error becomes a one-sentence `UserError`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from casa.errors import UserError, nearest

T = TypeVar("T")

_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _integer_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda args: integer(args[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def integer(text: str) -> int:
    """The integer in `text`; 1_000_000 and 1e6 are accepted."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if (number := float(text)).is_integer():
            return int(number)
    raise ValueError(f"{text!r} is not a whole number")


def leaves(target: type[Any], prefix: str = "") -> dict[str, Any]:
    """Dotted field name -> type, for every field of a dataclass and of the dataclasses nested in it."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(target, include_extras=True).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found |= leaves(hint, f"{prefix}{name}.")
        else:
            found[prefix + name] = hint
    return found


def flag(name: str) -> str:
    """The command-line flag of a dotted field: learner.clip_norm -> --learner.clip-norm."""
    return "--" + name.replace("_", "-")


def parse(
    target: type[T],
    args: Sequence[str],
    *,
    prog: str,
    default: T | None = None,
    description: str | None = None,
) -> T:
    """`target` filled from `args`, over `default`; an unknown argument is a UserError."""
    value, rest = parse_known(target, args, prog=prog, default=default, description=description)
    if rest:
        raise _unexpected(rest[0], target)
    return value


def parse_known(
    target: type[T],
    args: Sequence[str],
    *,
    prog: str,
    default: T | None = None,
    description: str | None = None,
    add_help: bool = True,
) -> tuple[T, list[str]]:
    """(`target` filled from `args`, the unknown arguments)."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            value, rest = tyro.cli(
                target,
                prog=prog,
                description=description,
                args=list(args),
                default=tyro.MISSING_NONPROP if default is None else default,
                return_unknown_args=True,
                add_help=add_help,
                registry=_REGISTRY,
            )
    except SystemExit as left:
        if left.code:  # 0 after --help
            raise UserError(_sentence(errors.getvalue())) from None
        raise
    return value, rest


def _unexpected(argument: str, target: type[Any]) -> UserError:
    name = argument.split("=")[0]
    if not name.startswith("--"):
        return UserError(f"unexpected argument {argument!r}")
    flags = [flag(leaf) for leaf, hint in leaves(target).items() if not _is_positional(hint)]
    # --lr means --learner.lr, of which it is the last part, whatever else is spelled like it.
    ends = [each for each in flags if each.rpartition(".")[2] == name[2:].replace("_", "-")]
    near = ends[0] if ends else nearest(name, flags)
    return UserError(f"unknown flag {name}" + (f"; did you mean {near}?" if near else ""))


def _is_positional(hint: Any) -> bool:
    return tyro.conf.Positional in getattr(hint, "__metadata__", ())


def _sentence(box: str) -> str:
    """The message in tyro's error box (Unicode or ASCII): the text between its first two horizontal lines."""
    message: list[str] = []
    rules = 0
    for line in box.splitlines():
        text = line.strip("│ ")
        if text and (text[0] in "╭╰" or set(text) <= set("─-")):
            rules += 1
        elif rules == 1:
            message.append(text)
    return " ".join(message or box.split()).rstrip(" .")

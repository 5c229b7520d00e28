"""MkDocs hook: the pages that come from the rest of the repository.

- The README is the home page; CONTRIBUTING.md, CHANGELOG.md and SECURITY.md are pages too.
- The API reference follows the tree of `src/casa`: one page for each package or module at the top.
- Markdown files link to code and raw data by paths in the repository, so that the links work there. Here a linked
  file is copied into the site, and the link follows it.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "casa"
DOCS = ROOT / "docs"
PROJECT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
NAME = re.compile(r"(?<!`)`(casa(?:\.\w+)+)`(?!`)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and everything that they link to, before the navigation is built."""
    for source, page in PROJECT.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    _extend_navigation(files, config)
    for page, content in _reference():
        files.append(File.generated(config, page, content=content))
    todo = [_source(file.src_uri) for file in files.documentation_pages() if not _is_reference(file.src_uri)]
    while todo:
        for target in _targets(todo.pop()):
            page = _page(target)
            if files.get_file_from_path(page) is None:
                files.append(_copy(target, page, config))
                todo.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to the repository into links within the site, and names of the API into references."""
    uri = page.file.src_uri
    source = _source(uri)
    if _is_reference(uri) or source.is_dir():
        return markdown

    def follow(match: re.Match[str]) -> str:
        target = _resolve(source, match[2])
        if target is None:
            return match[0]
        return f"{match[1]}{os.path.relpath(_page(target), os.path.dirname(uri) or '.')}{match[3]}"

    # Only where a name is a sentence's own: a link's text is a link already.
    parts = re.split(r"(```.*?```|\[[^\]]*\]\([^)]*\))", LINK.sub(follow, markdown), flags=re.DOTALL)
    parts[::2] = [NAME.sub(r'<autoref identifier="\1" optional>`\1`</autoref>', part) for part in parts[::2]]
    return "".join(parts)


def _copy(target: Path, page: str, config: MkDocsConfig) -> File:
    """A file of the repository in the site, or a page that lists a folder."""
    if not target.is_dir():
        return File.generated(config, page, abs_src_path=str(target))
    listing = "\n".join(f"- [{path.name}]({path.name})" for path in _files_in(target))
    return File.generated(config, page, content=f"# {target.name}\n\n{listing}\n")


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _is_reference(page: str) -> bool:
    return page.startswith("reference/")


def _extend_navigation(files: Files, config: MkDocsConfig) -> None:
    nav = {title: entry for item in config.nav or [] for title, entry in item.items()}
    listed = set(re.findall(r"[\w/-]+\.md", str(config.nav)))
    nav["Tutorials"] += [f.src_uri for f in files.documentation_pages() if f.src_uri not in listed]
    nav["Reference"] += ["reference/index.md", *({f"casa.{room.stem}": _reference_page(room)} for room in _rooms())]


def _rooms() -> list[Path]:
    """The packages and modules at the top of the tree."""
    paths = [path for path in PACKAGE.iterdir() if _is_module(path) or (path / "__init__.py").exists()]
    return sorted((path for path in paths if not path.name.startswith("_")), key=lambda path: path.stem)


def _is_module(path: Path) -> bool:
    return path.suffix == ".py" and not path.name.startswith("_")


def _reference_page(room: Path) -> str:
    return f"reference/{room.stem}.md"


def _reference() -> Iterator[tuple[str, str]]:
    rows = []
    for room in _rooms():
        yield _reference_page(room), "\n".join(_parts(room))
        rows.append(f"| [`casa.{room.stem}`]({room.stem}.md) | {_summary(room)} |")
    exported = _exported(PACKAGE / "__init__.py", "casa")
    table = "\n".join(["| module | what it is for |", "|---|---|", *rows])
    yield "reference/index.md", f"# Reference\n\n{_block('casa', level=0, members=[])}\n{exported}\n\n{table}\n"


def _parts(room: Path) -> Iterator[str]:
    """The room's own docstring and names, then each of its modules."""
    name = f"casa.{room.stem}"
    if room.suffix == ".py":
        yield _block(name, level=1)
        return
    init = room / "__init__.py"
    yield _block(name, level=1, members=_own_names(init))
    yield _exported(init, name) + "\n"
    for path in sorted(room.rglob("*.py")):
        inside = path.relative_to(room)
        if path == init or any(part.startswith("_") and part != "__init__.py" for part in inside.parts):
            continue
        module = inside.parent if path.name == "__init__.py" else inside.with_suffix("")
        members = _own_names(path) if path.name == "__init__.py" else None
        yield _block(".".join([name, *module.parts]), members=members)


def _block(name: str, level: int = 2, members: list[str] | None = None) -> str:
    """A directive of mkdocstrings: a heading at `level` (0: none), the docstring, all members or those named."""
    options = [f"heading_level: {level}"] if level else ["show_root_heading: false", "show_root_toc_entry: false"]
    if members is not None:
        options.append(f"members: {members or 'false'}")
    return "\n".join([f"::: {name}", "    options:", *(f"      {option}" for option in options), ""])


def _own_names(init: Path) -> list[str]:
    """Public functions and classes that a package defines itself; those it imports stand under their own modules."""
    body = ast.parse(init.read_text(encoding="utf-8")).body
    names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in names if not name.startswith("_")]


def _exported(init: Path, package: str) -> str:
    """A sentence with what `__all__` lists."""
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = [f"{package}.{name}" for name in ast.literal_eval(node.value)]
            links = [f'<autoref identifier="{name}" optional>`{name}`</autoref>' for name in names]
            return f"Public names: {', '.join(links)}."
    return ""


def _summary(room: Path) -> str:
    """The first paragraph of a room's docstring, up to its first sentence's end."""
    path = room if room.suffix == ".py" else room / "__init__.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0].replace("|", "\\|")


def _source(page: str) -> Path:
    """The file of the repository that a page is made from."""
    for source, made in PROJECT.items():
        if made == page:
            return ROOT / source
    if page.startswith("files/"):
        return ROOT / page.removeprefix("files/").removesuffix("/index.md")
    return DOCS / page


def _page(target: Path) -> str:
    """Where a file or folder of the repository is in the site."""
    path = target.relative_to(ROOT).as_posix()
    if path in PROJECT:
        return PROJECT[path]
    if target.is_relative_to(PACKAGE):
        return _reference_page(PACKAGE / target.relative_to(PACKAGE).parts[0])
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    return f"files/{path}/index.md" if target.is_dir() else f"files/{path}"


def _resolve(source: Path, link: str) -> Path | None:
    """The file or folder that a relative link leads to; None for addresses and for mathematics in brackets."""
    if re.match(r"[a-z]+:", link):
        return None
    target = (source.parent / link).resolve()
    return target if target.is_relative_to(ROOT) and target.exists() else None


def _targets(source: Path) -> Iterator[Path]:
    """What a file of the repository links to, or a folder contains."""
    if source.is_dir():
        yield from _files_in(source)
    elif source.suffix == ".md":
        found = (_resolve(source, match[2]) for match in LINK.finditer(source.read_text(encoding="utf-8")))
        yield from (target for target in found if target is not None)

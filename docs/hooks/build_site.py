"""What MkDocs runs while it builds: fill in what comes from the code; refuse a site that lacks a name or needs a network."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["PULLBACK_BACKEND"] = "reference"  # the site needs no fast kernels, and no warning that there are none

import benchmark_page
import onnx_table
import ort_table
import project_files
import public_names
import tfjs_table
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from pullback.pictures.gallery import write_gallery

# A page holds the line <!-- made: NAME --> where one of these belongs.
MADE: dict[str, Callable[[], str]] = {
    "tfjs kernels": tfjs_table.table,
    "ort operators": ort_table.table,
    "onnx operators": onnx_table.table,
    "benchmark results": benchmark_page.results,
    "functions of torch.functional": public_names.functional_table,
    "ops of pullback.autograd": lambda: public_names.same_ops("pullback.autograd"),
    "other spellings of pullback.tfjs": public_names.camel_case,
    "ops of pullback.jax": lambda: public_names.same_ops("pullback.jax"),
}
MARK = re.compile(r"^<!-- made: (.+) -->$", re.MULTILINE)
# Python with prompts has a colour for answers, and can be copied without them.
EXAMPLE = re.compile(r"^( *```)python(\n *>>>)", re.MULTILINE)
# Scripts, styles, pictures and fonts; a link that a reader may follow is no part of a page.
FETCHED = re.compile(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//|<link\b[^>]*\bhref="(?:https?:)?//')


def gallery() -> dict[str, bytes]:
    """The gallery's pictures by name, drawn anew."""
    with TemporaryDirectory() as folder:
        write_gallery(folder)
        return {path.name: path.read_bytes() for path in Path(folder).rglob("*.*")}


def on_files(files: Any, config: Any) -> Any:
    for place, text in project_files.pages().items():
        files.append(File.generated(config, place, content=text))
    for name, picture in gallery().items():
        place = f"gallery/{name}"
        if drawn_before := files.get_file_from_path(place):
            files.remove(drawn_before)
        files.append(File.generated(config, place, content=picture))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    filled = MARK.sub(lambda found: MADE[found[1]](), markdown)
    filled = EXAMPLE.sub(r"\1pycon\2", filled)
    return project_files.inside_the_site(filled, page.file.src_uri.count("/"))


def on_post_build(config: Any) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in Path(config.site_dir).rglob("*.html")}
    if missing := public_names.missing_names(pages.values()):
        raise PluginError(f"on no reference page: {', '.join(missing)}")
    for path, text in pages.items():
        if "doc-module" in text:
            raise PluginError(f"{path.name}: a module stands where the function of its name belongs; write it in full")
        if fetched := FETCHED.search(text):
            raise PluginError(f"{path.name} would load something from the network: {fetched[0]}")

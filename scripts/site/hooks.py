"""What mkdocs cannot know: the reference is made from the headers, and documents link to files
outside docs/ (an example, a header), which the site carries as they are."""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent.parent
OUTSIDE = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)((?:#[^)\s]*)?\))")


def outside(page_uri, target):
    """The file of the tree that a link of a page leaves docs/ for, or None."""
    path = (ROOT / "docs" / page_uri).parent / target
    path = Path(os.path.normpath(path))
    return path if path.is_file() and not path.is_relative_to(ROOT / "docs") else None


def carried(path):
    # As text, so that a browser shows it.
    return f"tree/{path.relative_to(ROOT)}.txt"


def on_files(files, config):
    made = Path(os.environ.get("MILLPOND_REFERENCE", ROOT / "build/site-reference"))
    if not (made / "reference/index.md").exists():
        raise SystemExit(
            f"no {made}/reference/index.md: scripts/docs makes it before it calls mkdocs"
        )
    for path in sorted((made / "reference").glob("*.md")):
        # The index leads to them; a menu of fifty headers would hide the rest.
        files.append(
            File.generated(
                config,
                f"reference/{path.name}",
                content=path.read_text(),
                inclusion=InclusionLevel.NOT_IN_NAV
                if path.name != "index.md"
                else InclusionLevel.INCLUDED,
            )
        )
    for page in list(files.documentation_pages()):
        if page.generated_by:
            continue
        for _, target, _ in OUTSIDE.findall(page.content_string):
            path = outside(page.src_uri, target)
            if path and not files.get_file_from_path(carried(path)):
                files.append(File.generated(config, carried(path), content=path.read_bytes()))
    return files


def on_page_markdown(markdown, page, config, files):
    def put(match):
        path = outside(page.file.src_uri, match.group(2))
        if path is None:
            return match.group(0)
        return (
            match.group(1)
            + os.path.relpath(carried(path), Path(page.file.src_uri).parent or ".")
            + match.group(3)
        )

    # What the tests of the documents read is no matter of the reader's.
    markdown = re.sub(r"^<!-- (?:run|not run|output)[^>]*-->\n", "", markdown, flags=re.M)
    return OUTSIDE.sub(put, markdown)

"""The little of Markdown that the document checks need: files, prose lines, fenced blocks,
anchors."""

import re
from dataclasses import dataclass

FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\S*)")
COMMENT = re.compile(r"^\s*<!--\s*(.*?)\s*-->\s*$")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")


@dataclass
class block:
    """A fenced block: its language, its text, its first line's number, and the comment line before
    it."""

    language: str
    text: str
    line: int
    mark: str


def documents(root):
    """Every document of the tree: the top ones, docs/, and each folder's README."""
    found = set(root.glob("*.md"))
    for folder in ("docs", "src", "bench", "examples", "tests", "data", "python", "scripts"):
        found |= set((root / folder).rglob("*.md"))
    return sorted(found)


def split(path):
    """(prose lines as (number, text), blocks)."""
    prose, blocks = [], []
    fence, start, body, language, mark, last_comment = None, 0, [], "", "", ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = FENCE.match(line)
        if fence is None and match:
            fence, start, body, language, mark = (
                match.group(2),
                number + 1,
                [],
                match.group(3),
                last_comment,
            )
            last_comment = ""
        elif fence is not None:
            if line.strip() == fence:
                blocks.append(block(language, "\n".join(body), start, mark))
                fence = None
            else:
                body.append(line)
        else:
            comment = COMMENT.match(line)
            if comment:
                last_comment = comment.group(1)
            elif line.strip():
                last_comment = ""
            prose.append((number, line))
    if fence is not None:
        raise ValueError(f"{path}:{start}: a fenced block is not closed")
    return prose, blocks


def anchors(path):
    """The anchors that GitHub makes of the headings."""
    names = set()
    for _, line in split(path)[0]:
        match = HEADING.match(line)
        if match:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1)).replace("`", "")
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            while name in names:
                name += "-1"
            names.add(name)
    return names

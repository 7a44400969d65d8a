"""Tables that scripts write into documents, between two comment lines that mark the place."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import result_files


def table(head, rows):
    """As the formatter of the documents leaves it."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("--" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def words(text):
    """What a text says, however the formatter breaks its lines and rules its tables."""
    return re.sub(r"-{2,}", "--", text.replace("\\", "")).split()


def put(made, write, root=result_files.ROOT):
    """Puts each text between its marks, made = {(first, last): text}, in the document that has
    them, wherever that lies; without write it only says which documents would change."""
    stale = []
    for (first, last), text in made.items():
        document = result_files.document_with(first, root)
        whole = document.read_text()
        before, rest = whole.split(first, 1)
        old, after = rest.split(last, 1)
        if words(old) == words(text):
            continue
        stale.append(str(document.relative_to(root)))
        if write:
            document.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}")
    return list(dict.fromkeys(stale))


def check(made, script, root=result_files.ROOT):
    """The exit status of `script --check`."""
    stale = put(made, write=False, root=root)
    if stale:
        print(f"not what bench/results says: {', '.join(stale)}; {script} puts it right")
    return 1 if stale else 0

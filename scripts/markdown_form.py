"""Markdown as `scripts/format` leaves it: what writes a table into a document writes it in this form, so that a check
of the table compares text with text."""

import textwrap

COLUMNS = 100


def row(cells):
    return "|" + "|".join(f" {cell} " if cell else "  " for cell in cells) + "|"


def as_formatted(text):
    """Tables compact, paragraphs wrapped. No lists, code or headings: no table's text has any."""
    made, paragraph = [], []

    def end_paragraph():
        if paragraph:
            made.extend(
                textwrap.wrap(
                    " ".join(paragraph), COLUMNS, break_long_words=False, break_on_hyphens=False
                )
            )
            paragraph.clear()

    for line in text.splitlines():
        if line.startswith("|"):
            end_paragraph()
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            made.append(
                row(
                    "--" if cell and not cell.strip("-") and len(cell) > 1 else cell
                    for cell in cells
                )
            )
        elif line.strip():
            paragraph.append(line.strip())
        else:
            end_paragraph()
            made.append("")
    end_paragraph()
    return "\n".join(made)


def between_marks(text, begin, end, made):
    """`text` with what stands between the two marks replaced by `made`, blank lines beside the marks."""
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    return f"{before}{begin}\n\n{as_formatted(made)}\n\n{end}{after}"

"""The reference: a page a public header, made of what Doxygen read in it.

usage: reference.py XML_FOLDER OUTPUT_FOLDER
"""

import re
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PUBLIC = (
    "public-type",
    "public-static-attrib",
    "public-attrib",
    "public-static-func",
    "public-func",
    "enum",
    "typedef",
    "var",
    "func",
    "define",
    "user-defined",
)


def flat(node):
    """A node's text with nothing but its words: for signatures."""
    return "".join(node.itertext()) if node is not None else ""


def escaped(text):
    return (
        text.replace("\\", "\\\\")
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace("*", r"\*")
        .replace("[", r"\[")
    )


def inline(node):
    """A paragraph as Markdown."""
    made = escaped(node.text or "")
    for child in node:
        if child.tag in ("computeroutput", "verbatim"):
            made += f"`{flat(child)}`"
        elif child.tag == "itemizedlist":
            items = [
                " ".join(inline(para) for para in item.iter("para"))
                for item in child.findall("listitem")
            ]
            made += "\n\n" + "\n".join(f"- {item}" for item in items) + "\n\n"
        elif child.tag in ("orderedlist",):
            items = [
                " ".join(inline(para) for para in item.iter("para"))
                for item in child.findall("listitem")
            ]
            made += "\n\n" + "\n".join(f"{n}. {item}" for n, item in enumerate(items, 1)) + "\n\n"
        elif child.tag == "programlisting":
            lines = [code_line(line) for line in child.findall("codeline")]
            made += "\n\n```cpp\n" + "\n".join(lines) + "\n```\n\n"
        else:
            made += inline(child)
        made += escaped(child.tail or "")
    return made


def code_line(node):
    made = node.text or ""
    for child in node:
        made += (" " if child.tag == "sp" else "") + code_line(child) + (child.tail or "")
    return made


def words(of):
    """What a comment says, in one or more paragraphs; empty where there is none."""
    parts = []
    for tag in ("briefdescription", "detaileddescription"):
        node = of.find(tag)
        parts += [
            inline(para).strip()
            for para in (node if node is not None else [])
            if para.tag == "para"
        ]
    return "\n\n".join(part for part in parts if part)


def spaced(text):
    """C++ as it is written here: `driver* gpu`, `result<void>`."""
    text = (
        text.replace("< ", "<").replace(" >", ">").replace("={}", " = {}").replace(")=0", ") = 0")
    )
    return (
        re.sub(r" ([*&]+) ?", r"\1 ", text)
        .replace("* ,", "*,")
        .replace("* )", "*)")
        .replace("& )", "&)")
        .replace("& ,", "&,")
        .strip()
    )


def cell(text):
    return " ".join(text.split()).replace("|", r"\|")


def template_of(of):
    params = of.find("templateparamlist")
    if params is None:
        return ""
    names = []
    for each in params.findall("param"):
        name = flat(each.find("declname"))
        names.append(flat(each.find("type")) + (f" {name}" if name else ""))
    return f"template <{', '.join(names)}>\n"


def signature(of):
    kind = of.get("kind")
    if kind == "define":
        return f"#define {flat(of.find('name'))} {flat(of.find('initializer'))}".rstrip()
    made = template_of(of)
    type_text = spaced(flat(of.find("type")))
    name = flat(of.find("name"))
    if kind == "typedef":
        return made + (
            f"using {name} = {type_text};"
            if flat(of.find("definition")).startswith("using")
            else flat(of.find("definition")) + ";"
        )
    if of.get("static") == "yes" and not type_text.startswith("static"):
        made += "static "
    made += (type_text + " " if type_text else "") + name + spaced(flat(of.find("argsstring")))
    initial = flat(of.find("initializer")).strip()
    if kind == "variable" and initial:
        made += " " + (initial if initial.startswith(("=", "{")) else f"= {initial}")
    return made + ";"


def enumeration(of, level):
    name = flat(of.find("name"))
    made = [f"{'#' * level} {name}", "", words(of), "", "| value | |", "| --- | --- |"]
    for each in of.findall("enumvalue"):
        made.append(f"| `{flat(each.find('name'))}` | {cell(words(each))} |")
    return [*made, ""]


def heading(of):
    return flat(of.find("name"))


def together(file, first, second):
    """No empty line lies between two lines of a header."""
    lines = (ROOT / file[file.index("include/") :]).read_text().splitlines()
    return all(line.strip() for line in lines[first - 1 : second])


def members(nodes, level):
    """Functions and the like in the order of the header. One comment may stand over several
    declarations: those without their own, on the lines below it, are shown with it."""
    made, group = [], None

    def close():
        if group:
            made.extend(
                [
                    f"{'#' * level} {group['name']}",
                    "",
                    "```cpp",
                    *group["code"],
                    "```",
                    "",
                    group["text"],
                    "",
                ]
            )

    for each in nodes:
        text, line = words(each), int(each.find("location").get("line"))
        if group and not text and together(each.find("location").get("file"), group["line"], line):
            group["code"].append(signature(each))
            group["line"] = line
            continue
        close()
        group = {"name": heading(each), "code": [signature(each)], "text": text, "line": line}
    close()
    return made


def fields(nodes):
    made = ["| field | | |", "| --- | --- | --- |"]
    for each in nodes:
        initial = flat(each.find("initializer")).lstrip("= ").strip()
        kind = cell(spaced(flat(each.find("type"))))
        shape = f"`{kind}{flat(each.find('argsstring'))}`"
        if initial not in ("", "{}"):
            shape += f", `{cell(initial)}`"
        made.append(f"| `{heading(each)}` | {shape} | {cell(words(each))} |")
    return [*made, ""]


def sections(compound, level, file):
    """What a compound declares in this file, by sort."""
    nodes = [
        node
        for section in compound.findall("sectiondef")
        if section.get("kind") in PUBLIC
        for node in section.findall("memberdef")
        if node.find("location").get("file", "").endswith(file)
    ]
    nodes.sort(key=lambda node: int(node.find("location").get("line")))
    nodes = [
        node
        for node in nodes
        if node.get("kind") != "friend" and not flat(node.find("name")).startswith("@")
    ]
    made = []
    for node in nodes:
        if node.get("kind") == "enum":
            made += enumeration(node, level)
    variables = [node for node in nodes if node.get("kind") == "variable"]
    if variables:
        made += fields(variables)
    return made + members(
        [node for node in nodes if node.get("kind") in ("function", "typedef", "define")], level
    )


def compound_page(compound, found, level, file):
    name = flat(compound.find("compoundname")).removeprefix("millpond::")
    bases = [flat(base).removeprefix("millpond::") for base in compound.findall("basecompoundref")]
    made = [f"{'#' * level} {compound.get('kind')} {name}", ""]
    if bases:
        made += [f"Is a {', '.join(f'`{base}`' for base in bases)}.", ""]
    made += [words(compound), ""] + sections(compound, level + 1, file)
    for inner in compound.findall("innerclass"):
        if inner.get("prot") == "public" and inner.get("refid") in found:
            made += compound_page(found[inner.get("refid")], found, level + 1, file)
    return made


def pages(folder):
    """{"reference/pool.md": text}, an index included."""
    found = {}
    for path in sorted(Path(folder).glob("*.xml")):
        if path.name == "index.xml" or path.name.startswith(("dir_", "Doxyfile")):
            continue
        compound = tree.parse(path).getroot().find("compounddef")
        if compound is not None:
            found[compound.get("id")] = compound
    made, index = {}, []
    for file in (each for each in found.values() if each.get("kind") == "file"):
        path = file.find("location").get("file")
        path = path[path.index("include/") + len("include/") :]
        text = words(file)
        page = [f"# {path}", "", text, "", f"`#include <{path}>`", ""]
        # Classes before free functions: these take those.
        for inner in file.findall("innerclass"):
            compound = found.get(inner.get("refid"))
            name = flat(inner)
            outer_is_class = any(
                flat(other) != name and name.startswith(flat(other) + "::")
                for other in file.findall("innerclass")
            )
            if (
                compound is None
                or outer_is_class
                or inner.get("prot") == "private"
                or "::detail::" in name
            ):
                continue
            page += compound_page(compound, found, 2, path)
        free = []
        for space in [file] + [
            found[inner.get("refid")]
            for inner in file.findall("innernamespace")
            if inner.get("refid") in found and "detail" not in flat(inner)
        ]:
            free += sections(space, 3, path)
        if free:
            page += ["## Functions and values", "", *free]
        uri = (
            "reference/"
            + path.removeprefix("millpond/").replace("/", "_").replace(".", "_")
            + ".md"
        )
        made[uri] = "\n".join(page) + "\n"
        first = re.split(r"(?<=[\w)])\. ", text.split("\n\n")[0].split(" `const ")[0] + " ")[
            0
        ].rstrip(".")
        index.append((path, uri.removeprefix("reference/"), first))
    lines = [
        "# Reference",
        "",
        "The public headers, as Doxygen read them. What is promised is in their comments; the "
        "words are the "
        "[glossary](../glossary.md)'s.",
        "",
        "| header | |",
        "| --- | --- |",
    ]
    lines += [f"| [{path}]({uri}) | {cell(text)} |" for path, uri, text in sorted(index)]
    made["reference/index.md"] = "\n".join(lines) + "\n"
    return made


if __name__ == "__main__":
    for uri, text in pages(sys.argv[1]).items():
        target = Path(sys.argv[2]) / uri
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

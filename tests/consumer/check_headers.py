"""Compiles each public header alone with one compiler, with warnings as errors.

Besides: each header says what it needs to a compiler of an older standard, and a program that names
a few members of an options struct gets no warning about the others.

usage: check_headers.py COMPILER INCLUDE_DIR [FOLDER_OF_FOREIGN_HEADERS]
       check_headers.py COMPILER --self-test

Exits with 77 where the compiler is not installed.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FLAGS = "-fsyntax-only -Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror".split()
LANGUAGE = "millpond/detail/language.hpp"
# These need a CUDA toolkit of their own choice; examples/foreign compiles them where there is one.
LEFT_TO_EXAMPLES = {"millpond/bindings/cuda_mr.hpp", "millpond/bindings/thrust.hpp"}
# Structs that a program fills in, besides those that are called options.
FILLED_IN = "gpu_profile|cost_table|fault_plan|kernel_description|metric_source|stream_details"
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
STRUCT = re.compile(rf"^struct (\w+_options|{FILLED_IN}) \{{\n(.*?)^\}};", re.MULTILINE | re.DOTALL)
MEMBER = re.compile(r"^  (?!//)[^()]*?[\w>] (\w+)(?: =|;|\{)", re.MULTILINE)


class Checker:
    def __init__(self, compiler, include, foreign):
        self.compiler = compiler
        self.include = include
        self.folders = ["-I", str(include)] + (["-isystem", str(foreign)] if foreign else [])

    def run(self, source, *flags):
        """The compiler's exit status and what it says of a source given as text."""
        command = [self.compiler, "-x", "c++", *flags, *self.folders, "-"]
        done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=250)
        return done.returncode, done.stdout + done.stderr

    def compile(self, source):
        """What the compiler says against a source, or nothing."""
        status, words = self.run(source, "-std=c++20", *FLAGS)
        return "" if status == 0 else words or f"exit status {status}"

    def has(self, names):
        probe = " && ".join(f"__has_include(<{name}>)" for name in names)
        return self.run(f"#if !({probe})\n#error\n#endif\n", "-std=c++20", "-E")[0] == 0

    def header(self, name):
        """The faults of one header, and the foreign headers that it needs and that are not here."""
        text = (self.include / name).read_text()
        included = INCLUDE.findall(text)
        faults = []
        if name != LANGUAGE and included[:1] != [LANGUAGE]:
            faults.append(f"{name}: does not include {LANGUAGE} before anything else")
        foreign = [i for i in included if re.search(r"[./]", i) and not i.startswith("millpond")]
        if name in LEFT_TO_EXAMPLES or (foreign and not self.has(foreign)):
            return faults, foreign
        # Twice, and then each struct with its first member alone.
        filled = ""
        for struct, body in STRUCT.findall(text):
            first = MEMBER.search(body).group(1)
            filled += f"[[maybe_unused]] const millpond::{struct} one_{struct}"
            filled += f"{{.{first} = {{}}}};\n"
        said = self.compile(f"#include <{name}>\n#include <{name}>\n{filled}")
        if "field-initializers" in said:
            faults.append(f"{name}: a member without an initialiser:\n{said}")
        elif said:
            faults.append(f"{name} does not compile alone:\n{said}")
        return faults, []

    def older_standard(self, name):
        status, words = self.run(f"#include <{name}>\n", "-std=c++17", "-fsyntax-only")
        first = next((line for line in words.splitlines() if "error" in line), "nothing")
        if status == 0 or "millpond needs C++20" not in first:
            return [f"{name} as C++17: the first error does not say that C++20 is needed: {first}"]
        return []

    def all(self):
        names = sorted(str(p.relative_to(self.include)) for p in self.include.rglob("*.hpp"))
        faults, compiled = [], 0
        for name in names:
            found, missing = self.header(name)
            faults += found
            compiled += not missing
            if missing:
                print(f"{name}: not compiled here, it needs {', '.join(missing)}")
        umbrella = "millpond/millpond.hpp"
        faults += self.older_standard(umbrella if umbrella in names else names[0])
        return faults, compiled


def self_test(compiler):
    """Plants one fault of each sort in a good header and expects to hear of it."""
    language = '#if __cplusplus < 202002L\n#error "millpond needs C++20"\n#endif\n'
    good = (
        f'#pragma once\n#include "{LANGUAGE}"\n\n#include <string>\nnamespace millpond {{\n'
        "struct some_options {\n  int first = 0;\n  std::string name = {};\n};\n}\n"
    )
    plants = {
        "": good,
        "does not compile alone": good.replace("#include <string>\n", ""),
        "does not include": good.replace(f'#include "{LANGUAGE}"\n', ""),
        "without an initialiser": good.replace("name = {}", "name"),
    }
    if Checker(compiler, Path(), None).run("#ifdef __clang__\n#error\n#endif\n", "-E")[0] != 0:
        del plants["without an initialiser"]  # not every Clang warns of a designated one
    for expected, text in plants.items():
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {LANGUAGE: language, "millpond/millpond.hpp": text}.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
            faults, _ = Checker(compiler, Path(folder), None).all()
        if bool(faults) != bool(expected) or expected not in "\n".join(faults):
            sys.exit(f"planted: {expected or 'no fault'}\nheard: {faults}")
    print(f"{len(plants)} planted headers, each judged rightly")


def main():
    compiler = shutil.which(sys.argv[1])
    if compiler is None:
        print(f"skipped: {sys.argv[1]} is not installed")
        sys.exit(77)
    if sys.argv[2] == "--self-test":
        self_test(compiler)
        return
    include = Path(sys.argv[2])
    faults, compiled = Checker(compiler, include, sys.argv[3] if sys.argv[3:] else None).all()
    print("\n".join(faults))
    print(f"{compiled} headers compiled alone by {compiler}, {len(faults)} faults")
    sys.exit(1 if faults or compiled < 30 else 0)


if __name__ == "__main__":
    main()

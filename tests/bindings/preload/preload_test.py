"""`millpond run --pool` on programs of the shared runtime and of the driver, with test doubles of
both and a simulated GPU.

usage: preload_test.py MILLPOND PROGRAM DRIVER_PROGRAM STATIC_PROGRAM
"""

import os
import re
import subprocess
import sys
import tempfile

millpond, program, driver_program, static_program = sys.argv[1:]
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)
        print("not so:", what)


def run(*command, status=0, env=None):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})}
    )
    expect(
        done.returncode == status,
        f"{command} ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-600:]}",
    )
    return done


def served(*options, arguments=(), command=None):
    return run(
        millpond,
        "run",
        "--pool",
        "--report",
        *options,
        "--gpu",
        "sim",
        "--",
        command or program,
        *arguments,
    )


def lines(text):
    return [line for line in text.splitlines() if not line.startswith("#")]


def number(pattern, text):
    found = re.search(pattern, text)
    return int(found.group(1)) if found else -1


# Children that ask for nothing say nothing; the program that was started does.
children = "import subprocess\nfor _ in range(3): subprocess.run(['/bin/true'], check=True)"
parent = served(command=sys.executable, arguments=["-c", children])
expect(parent.stderr.count("0 allocations served") == 1, f"one report, not: {parent.stderr}")

plain = run(program)
plain_calls = number(r"# calls of CUDA's own: (\d+)", plain.stdout)
expect(plain_calls > 6000, f"the program calls CUDA often: {plain_calls}")
for options in ([], ["--free", "later"], ["--ipc"], ["--kinds", "device"], ["--limit", "64MiB"]):
    under = served(*options)
    expect(
        lines(under.stdout) == lines(plain.stdout),
        f"{options}: other output:\n{under.stdout}\ninstead of\n{plain.stdout}",
    )
    expect(
        number(r"# calls of CUDA's own: (\d+)", under.stdout) < 60,
        f"{options}: most calls are served: {under.stdout[-200:]}",
    )
    expect(
        number(r"millpond: (\d+) allocations served", under.stderr) > 3200 * 2,
        f"{options}: {under.stderr}",
    )
    expect("reserved at most" in under.stderr, under.stderr)

expect("# type 1" in served().stdout, "a pinned block is host memory")
# A segment that --ipc keeps is an allocation of CUDA's: a second free of it must not get there.
for options, seen in (([], 1), (["--ipc"], 0)):
    text = served(*options).stdout
    expect(
        f"saw the address: {seen}" in text and f"saw it in order: {seen}" in text,
        f"{options}: a second free: {text}",
    )
ipc = served(arguments=["ipc"])
expect(
    "# ipc: 801" in ipc.stdout and "--ipc" in ipc.stderr,
    f"a handle is refused with the way out: {ipc.stdout} {ipc.stderr}",
)
ipc = served("--ipc", arguments=["ipc"])
expect(
    "# ipc: 0" in ipc.stdout and "shares GPU memory" not in ipc.stderr,
    f"--ipc gives handles: {ipc.stdout}{ipc.stderr}",
)

direct = run(driver_program)
under = served(command=driver_program)
expect(lines(under.stdout) == lines(direct.stdout), f"{under.stdout} instead of {direct.stdout}")
expect("the block itself: 1" in under.stdout, f"the range is the block: {under.stdout}")
expect("calls of the driver's own: 0, then 2" in under.stdout, under.stdout)

static = run(millpond, "run", "--pool", "--", static_program, status=3)
expect("linked statically" in static.stderr and "-cudart shared" in static.stderr, static.stderr)
gone = run(millpond, "run", "--pool", "--", "/no/such/program", status=3)
expect("no such program" in gone.stderr, gone.stderr)
expect("say --pool" in run(millpond, "run", "--", program, status=2).stderr, "--pool is asked for")
expect(
    "expected device"
    in run(millpond, "run", "--pool", "--kinds", "video", "--", program, status=2).stderr,
    "kinds are checked",
)
missing = run(
    millpond, "run", "--pool", "--", program, status=2, env={"MILLPOND_PRELOAD": "/nowhere/lib.so"}
)
expect("/nowhere/lib.so" in missing.stderr, missing.stderr)

# A script is run by what it names; its interpreter is dynamic, and the library gets there.
with tempfile.TemporaryDirectory() as folder:
    script = os.path.join(folder, "script")
    with open(script, "w") as out:
        out.write(f"#!/bin/sh\nexec {program}\n")
    os.chmod(script, 0o755)
    expect(
        number(r"millpond: (\d+) allocations served", served(command=script).stderr) > 6000,
        "a script's program is served",
    )

# Without a driver and without --gpu sim: said once, and the program goes on.
if not os.path.exists("/dev/nvidia0"):
    without = run(millpond, "run", "--pool", "--", program)
    expect(lines(without.stdout) == lines(plain.stdout), without.stdout)
    expect(
        without.stderr.count("is not served") == 1 and "libcuda" in without.stderr, without.stderr
    )

print("as it should be" if not failures else f"{len(failures)} expectations failed")
sys.exit(1 if failures else 0)

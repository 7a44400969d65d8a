"""Makes a clean virtual environment, installs the package there by `pip install .`, and runs
package_test.py in it.

The binaries are those of the build folder (cmake option MILLPOND_PREBUILT), so that nothing is
compiled twice; with --from-source everything is compiled, as on a user's machine, but without
optimisation, which takes a third of the time and leaves what is tested as it is: that the sources
are all there and go together. It goes into SOURCE/build-from-source, so that a second time is
short. Skips (77) where pip can reach neither an index nor an installed
scikit-build-core.

usage: wheel_test.py SOURCE_FOLDER BUILD_FOLDER SCRATCH [--from-source]
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

# --config-settings is what Debian 12's pip calls -C.
source, build, scratch = sys.argv[1:4]
from_source = sys.argv[4:] == ["--from-source"]
tests = Path(__file__).resolve().parent
shutil.rmtree(scratch, ignore_errors=True)
try:
    venv.create(scratch, with_pip=True)
except subprocess.CalledProcessError:
    print("this Python cannot make virtual environments (Debian: python3-venv)")
    sys.exit(77)
python = Path(scratch) / "bin/python"
install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", source]
environment = dict(os.environ)
if from_source:
    for setting in (
        f"build-dir={source}/build-from-source",
        "cmake.build-type=Debug",
        "cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O0",
    ):
        install += ["--config-settings", setting]
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", "2")
    for name, compiler in (
        ("CC", "cc"),
        ("CXX", "c++"),
    ):  # CMake's own choice, else scikit-build-core's by other names
        if shutil.which(compiler):
            environment.setdefault(name, compiler)
else:
    install += ["--config-settings", f"cmake.define.MILLPOND_PREBUILT={build}"]
done = subprocess.run(install, capture_output=True, text=True, env=environment)
if done.returncode != 0:
    if "No matching distribution found for scikit-build-core" in done.stderr + done.stdout:
        print("pip cannot fetch scikit-build-core here:", (done.stderr + done.stdout)[-300:])
        sys.exit(77)
    print(done.stdout + done.stderr)
    sys.exit(1)
listed = subprocess.run(
    [python, "-m", "pip", "list", "--format", "freeze"], check=True, capture_output=True, text=True
).stdout
assert "torch" not in listed and "millpond==0.2.0" in listed, listed
work = Path(scratch) / "work"
work.mkdir()
reported = subprocess.run(
    [python, "-c", "import millpond, millpond.torch; print(millpond.doctor())"],
    cwd=work,
    capture_output=True,
    text=True,
)
assert reported.returncode == 0 and len(reported.stdout) > 100, reported
if from_source:
    print(reported.stdout)
    sys.exit(0)
for example in sorted((Path(source) / "examples/python").glob("*.py")):
    done = subprocess.run([python, example], cwd=work, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("millpond"), (example, done)
sys.exit(subprocess.run([python, tests / "package_test.py"], cwd=work).returncode)

#!/bin/sh
# Installs the shared library alone, and uses it as C programs do: by the CMake package, and by
# pkg-config where there is one.
#   install_shared.sh CMAKE BUILD_FOLDER SCRATCH SOURCE_FOLDER CC GENERATOR
set -eu
cmake=$1; build=$2; scratch=$3; tests=$4; cc=$5; generator=$6
rm -rf "$scratch"
"$cmake" --install "$build" --prefix "$scratch/prefix" --component shared >/dev/null
"$cmake" -S "$tests/c_consumer" -B "$scratch/build" -G "$generator" \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_C_COMPILER="$cc" >/dev/null
"$cmake" --build "$scratch/build" >/dev/null
"$scratch/build/c_consumer"
pc=$(dirname "$(find "$scratch/prefix" -name millpond.pc)")
if command -v pkg-config >/dev/null; then
  sed -i "s|^prefix=.*|prefix=$scratch/prefix|" "$pc/millpond.pc"
  # shellcheck disable=SC2046
  "$cc" -D_POSIX_C_SOURCE=200809L "$tests/c_abi_test.c" -o "$scratch/by_pkg_config" \
    $(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs millpond)
  "$scratch/by_pkg_config"
fi

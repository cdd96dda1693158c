#!/usr/bin/env bash
# Builds the committed state twice, from clones in different directories, and compares the installed programs:
# deploy/package/reproducible.sh WORK_DIR
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
work=$(realpath "$1")
for name in first a-directory-with-a-longer-name; do
	rm -rf "${work:?}/$name"
	git clone -q "$here" "$work/$name/batzen"
	make -C "$work/$name/batzen" install PREFIX="$work/$name/installed" CARGO_TARGET_DIR="$work/$name/target"
	rm -rf "$work/$name/target"
	strip --strip-all "$work/$name/installed/bin/batzen"
done
sha256sum "$work"/*/installed/bin/batzen
for name in batzen batzen-lab; do
	cmp "$work"/*/installed/bin/$name
done
echo "the programs are the same"

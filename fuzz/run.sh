#!/usr/bin/env bash
# Builds the fuzz targets with the project's compiler, runs each for a while, and prints the results.
# Usage: run.sh SECONDS JOBS [TARGET...]; without targets: all of them.
#
# SECONDS are of processor time, so that a busy machine does not shorten a run. The script fails if a target crashed, hung or used
# too much memory; the inputs that did it are in target/fuzz-artifacts.
set -euo pipefail
cd "$(dirname "$0")"
out=../target
memory_max_mb=1024
# A larger corpus is reduced to the inputs that add coverage.
corpus_max_kib=8192

host=$(rustc -vV | sed -n 's/^host: //p')
bin() { echo "$out/fuzz/$host/release/$1"; }

# The coverage options that cargo-fuzz passes (counters and comparisons), without the address sanitizer, which needs a nightly compiler.
# --target keeps them away from build scripts.
build() {
	local flags="--cfg fuzzing -Cpasses=sancov-module" option
	for option in level=4 inline-8bit-counters pc-table trace-compares; do
		flags+=" -Cllvm-args=-sanitizer-coverage-$option"
	done
	RUSTFLAGS="$flags -Ccodegen-units=1" cargo build --release --locked --target "$host" --target-dir "$out/fuzz" "$@"
}

# Runs one target.
run() {
	local target=$1 seconds=$2 seeds=()
	local corpus=$out/fuzz-corpus/$target artifacts=$out/fuzz-artifacts/$target log=$out/fuzz-logs/$target.log
	mkdir -p "$corpus" "$artifacts" "$out/fuzz-logs"
	if [ -d "corpus/$target" ]; then seeds=("corpus/$target"); fi
	# A crash fails the script, but only after all targets have run.
	"$(bin "$target")" -rss_limit_mb=$memory_max_mb -timeout=25 -use_value_profile=1 -print_final_stats=1 \
		-artifact_prefix="$artifacts/" "$corpus" "${seeds[@]}" >"$log" 2>&1 &
	local pid=$!
	while kill -0 $pid 2>/dev/null && [ "$(ps -o cputimes= -p $pid)" -lt "$seconds" ]; do sleep 1; done 2>/dev/null
	# libFuzzer ends in good order on an interrupt, with code 72.
	kill -INT $pid 2>/dev/null || true
	local code=0
	wait $pid || code=$?
	if [ $code != 0 ] && [ $code != 72 ]; then echo "exit code $code" >>"$log"; fi
	if [ "$(du -sk "$corpus" | cut -f1)" -gt $corpus_max_kib ]; then
		rm -rf "$corpus.less" && mkdir "$corpus.less"
		if "$(bin "$target")" -merge=1 -rss_limit_mb=$memory_max_mb "$corpus.less" "$corpus" >>"$log.merge" 2>&1; then
			rm -rf "$corpus" && mv "$corpus.less" "$corpus"
		fi
	fi
}

# The line of a target in the table.
row() {
	local target=$1 log=$out/fuzz-logs/$1.log stat result=ok
	stat() { sed -n "s/^stat::$1: *//p" "$log" | tail -1; }
	# Coverage of the seeds, and at the end.
	local first last
	first=$(sed -n 's/.*INITED *cov: \([0-9]*\).*/\1/p' "$log" | head -1)
	last=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$log" | tail -1)
	if grep -q "^exit code" "$log"; then
		result="FAILED: $(sed -n 's/.*Test unit written to //p' "$log" | tail -1)"
	fi
	printf '%-20s %12s %9s %8s %8s %8s  %s\n' "$target" "$(stat number_of_executed_units)" "$(stat average_exec_per_sec)" \
		"${first:-0}" "${last:-0}" "$(stat peak_rss_mb)" "$result"
}

if [ "${1-}" = --one ]; then
	run "$2" "$3"
	exit
fi
seconds=$1 jobs=$2
shift 2
if [ $# -eq 0 ]; then
	mapfile -t targets < <(sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' Cargo.toml)
	build --bins
else
	targets=("$@")
	build "${targets[@]/#/--bin=}"
fi
for target in "${targets[@]}"; do rm -f "$out/fuzz-logs/$target.log"; done
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} ./run.sh --one {} "$seconds"
printf '%-20s %12s %9s %8s %8s %8s  %s\n' target executions per_s cov_seed cov_end peak_mb result
failed=0
for target in "${targets[@]}"; do
	row "$target"
	if ! grep -q "^stat::number" "$out/fuzz-logs/$target.log" || grep -q "^exit code" "$out/fuzz-logs/$target.log"; then failed=1; fi
done
if [ $failed = 1 ]; then
	echo "a target failed; see its log in target/fuzz-logs; to repeat: target/fuzz/$host/release/TARGET FILE" >&2
fi
exit $failed

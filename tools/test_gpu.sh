#!/usr/bin/env bash
# Tests and measures goflat on a machine with an NVIDIA GPU.
#
#     tools/test_gpu.sh WHEEL OUT [STEP...]
#
# The machine needs Python with torch (CUDA) and pytest, and this checkout; no Go, no network, no
# NumPy. WHEEL is one for that Python, installed into a folder of its own for the time being; "-"
# takes the goflat that Python finds. Logs, JSON and a summary go to the folder OUT.
#
# Steps, all of them by default:
#     doctor     what goflat finds here                      OUT/doctor.log
#     tests      python/tests/gpu; no GPU is a failure       OUT/tests.log, tests.xml
#     memcheck   compute-sanitizer over the small tests      OUT/memcheck.log
#     bench      wall and device times                       OUT/bench.log, bench.json
#     memory     what joining costs in memory, about 2 min   OUT/memory.log, memory.json
#
# Environment: PYTHON (python3), PYTEST_ARGS (further arguments, such as "-k streams"), LIMIT
# (seconds a step may take, 1500), COMPUTE_SANITIZER (its path, if it is not where CUDA puts it).
# Exit status: 0 if no step failed. Without compute-sanitizer memcheck is skipped, and says so.
set -uo pipefail

usage() {
	sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0"
	exit 2
}
[ $# -ge 2 ] || usage

root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$1
mkdir -p "$2" || exit 2
out=$(cd "$2" && pwd)
shift 2
steps=${*:-doctor tests memcheck bench memory}
python=${PYTHON:-python3}
limit=${LIMIT:-1500}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT

if [ "$wheel" != - ]; then
	wheel=$(realpath "$wheel")
	"$python" -m pip --quiet --disable-pip-version-check install --no-deps --no-index --target "$site" "$wheel" || exit 2
	export PYTHONPATH=$site
fi
cd "$root" || exit 2
export GOFLAT_REQUIRE_GPU=1 PYTHONDONTWRITEBYTECODE=1

# pyproject.toml and the conftest of the CPU tests ask for packages that need not be here.
suite() {
	# shellcheck disable=SC2086 # arguments, plural
	"$@" -m pytest -c /dev/null --rootdir="$root" --confcutdir=python/tests/gpu -p no:cacheprovider \
		--strict-markers --tb=short --maxfail=40 -rsfE --durations=10 python/tests/gpu ${PYTEST_ARGS:-}
}

doctor() {
	"$python" -m goflat doctor --gpu
}

tests() {
	PYTEST_ARGS="--junitxml=$out/tests.xml ${PYTEST_ARGS:-}" suite "$python"
}

sanitizer() {
	command -v "${COMPUTE_SANITIZER:-compute-sanitizer}" ||
		find /usr/local/cuda*/bin /usr/local/cuda*/compute-sanitizer -name compute-sanitizer 2>/dev/null | head -n 1
}

# Without torch's caching every tensor is an allocation of its own, so that one byte beyond it counts.
memcheck() {
	local tool
	tool=$(sanitizer)
	if [ -z "$tool" ]; then
		echo "compute-sanitizer is not installed"
		return 77
	fi
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTEST_ARGS="-m memcheck ${PYTEST_ARGS:-}" \
		suite "$tool" --tool memcheck --report-api-errors no --error-exitcode 9 "$python"
}

bench() {
	PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}python "$python" -m benchmarks --device cuda --json "$out/bench.json"
}

memory() {
	PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}python "$python" -m benchmarks --memory --device cuda --json "$out/memory.json"
}

# run STEP: its log, and a line of the summary.
run() {
	local start=$SECONDS status
	echo "== $1"
	timeout --signal=INT --kill-after=60 "$limit" bash -c '"$1"' - "$1" 2>&1 | tee "$out/$1.log"
	status=${PIPESTATUS[0]}
	case $status in
	0) word=passed ;;
	77) word=skipped ;;
	124 | 137) word="failed (took more than $limit s)" ;;
	*) word="failed (exit status $status)" ;;
	esac
	[ "$word" = passed ] || [ "$word" = skipped ] || failed=1
	printf '%-9s %s, %d s%s\n' "$1" "$word" $((SECONDS - start)) "$(tail_of "$1")" >>"$out/summary.log"
}

# The last line of a log of pytest says how many tests there were.
tail_of() {
	case $1 in
	tests | memcheck) grep -E '(passed|failed|error|installed)' "$out/$1.log" | tail -n 1 | sed 's/=//g; s/^ */: /' ;;
	esac
}

export -f suite doctor tests sanitizer memcheck bench memory
export python out root
failed=0
"$python" - >"$out/summary.log" <<-EOF
	import goflat, platform, torch
	gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
	print(f"{goflat.__file__}, Python {platform.python_version()}, torch {torch.__version__}, {gpu}")
EOF
for step in $steps; do
	case $step in
	doctor | tests | memcheck | bench | memory) run "$step" ;;
	*) usage ;;
	esac
done
echo "== summary"
cat "$out/summary.log"
exit "$failed"

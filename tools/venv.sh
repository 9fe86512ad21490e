# Sourced by ./demo, ./test and ./cluster from the project's top: makes .venv and installs into it what is asked for.
#   prepare_venv NAME PIP-ARGUMENTS...
# NAME marks what was installed; the work is done again when pyproject.toml changes or .venv is gone.
# Needs a POSIX sh and Python 3.11 or later; no make, no compiler. PYTHON names another interpreter than python3.

say() { printf '%s\n' "$*" >&2; }

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            python=$candidate
            return
        fi
    done
    say "Ottla needs Python 3.11 or later. On Debian or Ubuntu: sudo apt-get install -y python3 python3-venv"
    exit 1
}

# Debian and Ubuntu ship Python without what makes a virtual environment; fetch it when we may, else say how.
require_venv_module() {
    "$python" -c 'import venv, ensurepip' 2>/dev/null && return
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    package=python3-venv
    [ "$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')" = "$(realpath /usr/bin/python3 2>/dev/null)" ] ||
        package=python$version-venv
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
            as_root='sudo -n'
        else
            as_root=none
        fi
    fi
    if [ "$as_root" != none ] && command -v apt-get >/dev/null 2>&1; then
        say "Python's venv module is missing; installing $package through apt."
        # shellcheck disable=SC2086  # as_root is empty or two words
        if $as_root apt-get update >&2 && $as_root apt-get install -y --no-install-recommends "$package" >&2 &&
            "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            return
        fi
    fi
    say "Python's venv module is missing. Type this and start again:"
    say "    sudo apt-get install -y $package"
    exit 1
}

prepare_venv() {
    name=$1
    shift
    stamp=.venv/.installed-$name
    wanted=$(cksum <pyproject.toml)
    if grep -qsF "$PWD/.venv" .venv/bin/activate && .venv/bin/python -c '' 2>/dev/null &&
        [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    find_python
    require_venv_module
    say "Setting up .venv with $("$python" --version); a minute the first time."
    # A half-made or moved environment is made anew; a good one is kept.
    if ! grep -qsF "$PWD/.venv" .venv/bin/activate || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --clear .venv
    fi
    # Debian 12's pip does not know dependency groups.
    .venv/bin/python -m pip install --disable-pip-version-check --upgrade 'pip>=25.1' >&2
    .venv/bin/python -m pip install --disable-pip-version-check "$@" >&2
    printf '%s\n' "$wanted" >"$stamp"
}

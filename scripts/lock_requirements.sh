#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Write requirements/lock.txt from the .venv: the versions that the tests have passed with, of
# everything that requirements/pins.txt does not name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

{
    echo "# Written by scripts/lock_requirements.sh: do not edit. What requirements/pins.txt does not name."
    .venv/bin/python -m pip freeze --exclude-editable --all |
        grep -viE "^(pip|$(grep -oE '^[a-z][a-z0-9_-]*' requirements/pins.txt | paste -sd '|'))( @|==)"
} >requirements/lock.txt.new
mv requirements/lock.txt.new requirements/lock.txt

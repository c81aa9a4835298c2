#!/usr/bin/env bash
# Gathers what this package needs beside the packages of THERE into a folder of wheels, for a machine with a GPU (x86-64, Python
# 3.12) that reaches no package index, in the versions that are installed here: run it where `make test` has been run.
#   tests/gpu/wheels.sh [FOLDER]          # runs/wheels, which git ignores; at most 60 MiB
# On that machine, with the folder and this checkout:
#   pip install --no-index --no-deps --target site FOLDER/*.whl
#   PYTHONPATH=.:site python tests/gpu/truth.py
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-runs/wheels} python=${PYTHON:-.venv/bin/python}
# With what these bring along of any size.
export THERE="torch transformers accelerate peft pyarrow scipy statsmodels scikit-learn rich numpy pandas huggingface-hub hf-xet
    tokenizers safetensors regex pyyaml tqdm pygments psutil ninja setuptools"
mkdir -p "$folder"
rm -f "$folder"/*.whl
needed=$("$python" tests/gpu/needed.py)
options=(--quiet --no-deps --disable-pip-version-check)
binary=(--only-binary=:all: --python-version 3.12 --implementation cp)
for version in 2_34 2_31 2_28 2_27 2_24 2_17 2_12 2_5; do
    binary+=(--platform "manylinux_${version}_x86_64")
done
for name in $needed; do
    # What has no wheel is built here: pure Python, DeepSpeed's operators too are compiled where they are used.
    "$python" -m pip download "${options[@]}" "${binary[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
        --dest "$folder" "$name" 2>/dev/null ||
        DS_BUILD_OPS=0 "$python" -m pip wheel "${options[@]}" --wheel-dir "$folder" "$name"
done
"$python" -m pip wheel "${options[@]}" --wheel-dir "$folder" .
size=$(du -sm "$folder" | cut -f1)
echo "$(find "$folder" -name '*.whl' | wc -l) wheels, $size MiB in $folder"
[ "$size" -le 60 ]

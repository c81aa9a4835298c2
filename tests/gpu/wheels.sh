#!/usr/bin/env bash
# Gathers what this package needs on a machine with a GPU (x86-64, Python 3.12) that reaches no package index but has the packages
# that needed.py lists as INSTALLED, in the versions that are installed here: run it where `make test` has been run.
#   tests/gpu/wheels.sh [FOLDER]          # runs/wheels, which git ignores
# It makes folders of at most 60 MiB each, to be carried one by one: packages, as wheels; vllm, the Python of vLLM 0.31 with
# FlashAttention 3 and what they need; vllm_extension, its other kernels, without those for experts. They load into torch 2.11 as
# well as into the 2.13 that vLLM asks for.
# On that machine, with this checkout and the folders (the first is enough for all that needs no vLLM):
#   pip install --no-index --no-deps --target site FOLDER/*/*.whl
#   for archive in FOLDER/*/*.tar.xz; do python -m tarfile -e "$archive" site; done
#   VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONPATH=$PWD:$PWD/site python tests/gpu/truth.py
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-runs/wheels} python=${PYTHON:-.venv/bin/python} work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$folder"/{packages,vllm,vllm_extension}
mkdir -p "$folder"/{packages,vllm,vllm_extension}
build=("$python" -m pip wheel --quiet --no-deps --wheel-dir)
download=("$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp)
for platform in manylinux{_2_{34,31,28,27,24,17,12,5},2014,1}_x86_64; do
    download+=(--platform "$platform")
done
for part in packages vllm; do
    for name in $("$python" tests/gpu/needed.py "$part"); do
        # What has no wheel is built here: pure Python, DeepSpeed's operators too are compiled where they are used.
        "${download[@]}" --dest "$folder/$part" "$name" 2>/dev/null || DS_BUILD_OPS=0 "${build[@]}" "$folder/$part" "$name"
    done
done
"${build[@]}" "$folder/packages" .
"${download[@]}" --dest "$work" vllm==0.31.0
"$python" -m zipfile -e "$work"/vllm-*.whl "$work"
(cd "$work" && find vllm* -name '*.py' -o -name '*.json' -o -name '*.jinja' -o -name cumem_allocator.abi3.so -o -name _vllm_fa3_C.abi3.so -o -path '*.dist-info/*') |
    XZ_OPT=-6 tar -C "$work" -T - -cJf "$folder/vllm/vllm.tar.xz"
XZ_OPT=-9e tar -C "$work" -cJf "$folder/vllm_extension/extension.tar.xz" vllm/_C_stable_libtorch.abi3.so
for part in "$folder"/{packages,vllm,vllm_extension}; do
    size=$(du -sm "$part" | cut -f1)
    echo "$part: $(find "$part" -type f | wc -l) files, $size MiB"
    [ "$size" -le 60 ]
done

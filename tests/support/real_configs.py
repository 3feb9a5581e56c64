"""Parts of published models' config.json that matter here: every family, and each of its odd members.

A model "like" another one states its differences alone. The lists of longrope's divisors have their length, not their
numbers. Those of Granite Swash and LFM3 are the defaults of transformers, those of its mixture the sizes of Granite 3.1
MoE: the published files were not at hand.
"""

import json
from pathlib import Path
from typing import Any

REAL_CONFIGS: dict[str, dict[str, Any]] = {}
for _name, _fields in json.loads(Path(__file__).with_suffix(".json").read_text()).items():
    REAL_CONFIGS[_name] = REAL_CONFIGS.get(_fields.pop("like", None), {}) | _fields

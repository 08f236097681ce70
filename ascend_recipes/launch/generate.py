"""The child process of `ascend-run generate`: an offline engine that answers and ends.

Heavy: imports vLLM. Prompts come from a file of the run folder, because a command line is not
the place for arbitrary text; answers go to another one, because stdout is vLLM's log.
"""

import json
import os
from pathlib import Path
from typing import Any

from ascend_recipes.paths import PLAN_VARIABLE
from ascend_recipes.schema.plan import load_plan


def main() -> None:
    """Answer the prompts of the run folder that the plan variable names."""
    plan_path = Path(os.environ[PLAN_VARIABLE])
    plan = load_plan(plan_path)
    request = json.loads((plan_path.parent / "prompts.json").read_text(encoding="utf-8"))

    # Deferred: spawned processes import this module as their main module and need none of it.
    from vllm import LLM, EngineArgs, SamplingParams

    # Further arguments may be the server's alone, such as its defaults for chat templates.
    known = EngineArgs.__dataclass_fields__
    engine = LLM(**{name: value for name, value in plan.engine.items() if name in known})
    sampling = SamplingParams(temperature=0.0, max_tokens=request["max_tokens"])
    results = engine.generate(request["prompts"], sampling, use_tqdm=False)
    engine.collective_rpc("record_calls")
    outputs = [_output(result) for result in results]
    path = plan_path.parent / "outputs.json"
    path.write_text(json.dumps({"outputs": outputs}, ensure_ascii=False, indent=2) + "\n", "utf-8")


def _output(result: Any) -> dict[str, Any]:
    completion = result.outputs[0]
    return {
        "prompt": result.prompt,
        "prompt_token_ids": list(result.prompt_token_ids),
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
    }


if __name__ == "__main__":
    main()

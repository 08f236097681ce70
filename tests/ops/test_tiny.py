"""Tiny checkpoints: complete or absent, the same bytes for the same seed, loadable elsewhere."""

import hashlib
import json
import multiprocessing
import subprocess
import sys
import warnings

import pytest
import torch

from ascend_recipes import tiny
from ascend_recipes.errors import RecipeError
from ascend_recipes.registry.load import load_registry
from ascend_recipes.torchvision_schemas import define_missing_schemas

pytestmark = pytest.mark.ops

FAMILY = "qwen3_5"
TEXTS = [
    "你好，世界",
    "it's",
    '{"a":1}',
    "${x}",
    "😀👩‍👩‍👧",
    "\n",
    "a=b",
    " two  blanks\r\n\t",
    "Ünïcödé",
]


def full_config():
    return dict(load_registry().models["qwen3_5_27b"].config)


def ensure(folder, *, seed=0, dtype="bfloat16", model=None):
    return tiny.ensure_tiny_checkpoint(
        folder, family=FAMILY, model=model or full_config(), seed=seed, dtype=dtype
    )


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def checkpoint(cache):
    return ensure(cache, dtype="float32")


@pytest.fixture(scope="module")
def model(checkpoint):
    """The checkpoint in transformers, float32."""
    define_missing_schemas()
    from transformers import Qwen3_5ForConditionalGeneration

    loaded, report = Qwen3_5ForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    return loaded.eval()


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


def test_an_existing_checkpoint_is_reused(cache, checkpoint):
    before = {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    assert ensure(cache, dtype="float32") == checkpoint
    assert {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()} == before


def test_reuse_needs_no_torch(cache, checkpoint):
    code = (
        "import json, sys; from pathlib import Path; from ascend_recipes import tiny;"
        f"model = json.loads({json.dumps(json.dumps(full_config()))!r});"
        f"tiny.ensure_tiny_checkpoint(Path({str(cache)!r}), family={FAMILY!r}, model=model,"
        " seed=0, dtype='float32'); sys.exit('torch' in sys.modules)"
    )
    code = code.replace(
        repr(json.dumps(json.dumps(full_config()))), repr(json.dumps(full_config()))
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_same_seed_same_bytes(tmp_path, checkpoint):
    again = ensure(tmp_path, dtype="float32")
    assert again.name == checkpoint.name
    assert digests(again) == digests(checkpoint)


def test_other_seed_other_weights(tmp_path, checkpoint):
    other = ensure(tmp_path, seed=1, dtype="float32")
    assert other.name != checkpoint.name
    shard = "model-00001-of-"
    ours, theirs = (
        next(path for path in folder.iterdir() if path.name.startswith(shard))
        for folder in (checkpoint, other)
    )
    assert ours.read_bytes() != theirs.read_bytes()


def test_every_dtype_holds_the_same_numbers(tmp_path, checkpoint):
    low = ensure(tmp_path, dtype="bfloat16")
    wide, narrow = read_tensors(checkpoint), read_tensors(low)
    assert wide.keys() == narrow.keys()
    for name, tensor in wide.items():
        assert torch.equal(tensor.float(), narrow[name].float()), name
    kinds = {name: tensor.dtype for name, tensor in narrow.items()}
    assert {kind for name, kind in kinds.items() if name.endswith("A_log")} == {torch.float32}
    assert {kind for name, kind in kinds.items() if not name.endswith("A_log")} == {torch.bfloat16}


def read_tensors(folder):
    from safetensors.torch import load_file

    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def test_shards_and_index_agree(checkpoint):
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in checkpoint.glob("*.safetensors"))
    assert len(files) > 1
    assert sorted(set(index["weight_map"].values())) == files
    tensors = read_tensors(checkpoint)
    assert tensors.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert all(tensor.float().std() > 0 for tensor in tensors.values())
    assert len({tensor.numpy().tobytes() for tensor in tensors.values()}) == len(tensors)


def test_only_listed_fields_differ_from_the_full_model(checkpoint):
    text = json.loads((checkpoint / "config.json").read_text())["text_config"]
    full = full_config()
    added = {"model_type", "dtype"}
    changed = {name for name in text if text[name] != full.get(name)} - added
    assert changed <= set(tiny.tiny_fields(FAMILY))
    assert set(full) <= set(text)
    interval = full["full_attention_interval"]
    assert text["layer_types"] == (["linear_attention"] * (interval - 1) + ["full_attention"]) * 2


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny, "_write_shards", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_remains_of_a_killed_writer_are_replaced(tmp_path, checkpoint):
    partial = tmp_path / f".partial-{checkpoint.name}"
    partial.mkdir(parents=True)
    (partial / "config.json").write_text("{")
    assert digests(ensure(tmp_path, dtype="float32")) == digests(checkpoint)
    assert not partial.exists()


@pytest.mark.parametrize("damage", ["truncate", "delete", "manifest"])
def test_a_damaged_checkpoint_is_written_again(tmp_path, checkpoint, damage):
    folder = ensure(tmp_path, dtype="float32")
    victim = sorted(folder.glob("*.safetensors"))[0]
    if damage == "truncate":
        victim.write_bytes(victim.read_bytes()[:1000])
    elif damage == "delete":
        victim.unlink()
    else:
        (folder / tiny.MANIFEST).write_text("{}")
    assert digests(ensure(tmp_path, dtype="float32")) == digests(checkpoint)


def test_concurrent_starters_get_one_checkpoint(tmp_path, checkpoint):
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        results = [
            pool.apply_async(
                tiny.ensure_tiny_checkpoint,
                (tmp_path,),
                {"family": FAMILY, "model": full_config(), "seed": 0, "dtype": "float32"},
            )
            for _ in range(3)
        ]
        folders = {result.get(timeout=120) for result in results}
    assert len(folders) == 1
    assert digests(folders.pop()) == digests(checkpoint)
    assert len(list(tmp_path.iterdir())) == 2


def test_requests_that_cannot_be_served_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"scale.tiny_dtype.*int8.*float32, bfloat16, float16"):
        ensure(tmp_path, dtype="int8")
    with pytest.raises(RecipeError, match=r"scale.tiny_facts_missing.*rope_parameters"):
        ensure(tmp_path, model={"head_dim": 256})
    with pytest.raises(RecipeError, match=r"scale.tiny_experts.*mixture of experts"):
        ensure(tmp_path, model=full_config() | {"num_experts": 256})
    with pytest.raises(RecipeError, match=r"scale.tiny_unsupported.*llama"):
        tiny.ensure_tiny_checkpoint(tmp_path, family="llama", model={}, seed=0, dtype="float32")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RecipeError, match=r"scale\.cache_not_writable"):
        ensure(blocked)


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_tokenizer(tokenizer, text):
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert max(ids) < 256


def test_chat_template_is_chatml(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "你好"}]},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n你好<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.eos_token_id == 258
    assert tokenizer(text).input_ids.count(257) == 3
    assert tokenizer.convert_tokens_to_ids("<think>") == 268


def test_generation_stops_are_the_tokens_of_the_tokenizer(checkpoint, tokenizer):
    settings = json.loads((checkpoint / "generation_config.json").read_text())
    stops = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert settings["eos_token_id"] == stops


@pytest.mark.parametrize("prompt", ["Hello, world", "你好，世界"])
def test_greedy_text_is_varied_and_decided(model, tokenizer, prompt):
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model.generate(
            input_ids=ids,
            max_new_tokens=48,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=256,
            return_dict_in_generate=True,
            output_logits=True,
        )
    new = out.sequences[0, ids.shape[1] :].tolist()
    best_T2 = torch.stack(out.logits)[:, 0].topk(2, dim=-1).values
    gap_T = best_T2[:, 0] - best_T2[:, 1]
    assert len(set(new)) > 20
    assert tokenizer.decode(new).isprintable()
    assert gap_T.median() > 0.3
    assert (gap_T < 1e-3).sum() == 0


def test_context_matters_beyond_the_last_token(model, tokenizer):
    """Every layer kind contributes: the same last token after other text predicts otherwise."""
    first, second = (tokenizer(text, return_tensors="pt").input_ids for text in ("abcdX", "wxyzX"))
    with torch.no_grad():
        ours, theirs = (model(input_ids=ids).logits[0, -1] for ids in (first, second))
    assert not torch.allclose(ours, theirs, atol=0.5)

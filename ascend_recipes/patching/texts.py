"""Prose of the generated documents."""

HOW_IT_WORKS = """\
vLLM is not forked. It is extended, best first, by: a vLLM option; a hook of the platform class; a
registry of vLLM (models, attention and state backends, quantization, kernels); an out-of-tree
layer; a model class of ours; a patch row. A patch row (`registry/patches/<key>.yaml`, schema in
`ascend_recipes/schema/patch.py`) says what it changes, why, for which versions, what the target
looked like when somebody verified it, what a plan must have to need it, and when it must go.

One patcher applies rows; a test holds that nothing else assigns into vLLM, torch or transformers.
It first checks every row of the plan and reports everything that is wrong in one error; then it
applies all of them, or none:

| finding | what happened |
| --- | --- |
| `patch.target_missing` | renamed, moved or removed; the likely new place is named |
| `patch.signature_changed` | the target's parameters are not the verified ones |
| `patch.body_changed` | the target's code is not the verified one (a remark for `wrap`) |
| `patch.stale_alias` | imported early under another name, which would keep the original |
| `patch.applied_twice` | changed by another row, or by somebody else, already |
| `patch.conflict` | two rows on one target, or on a class and its method |
| `patch.unverified_version`, `patch.version_out_of_range` | nobody has read the target there |
| `patch.implementation_mismatch` | ours does not accept every call of the original |
| `patch.expired` | the condition for removal is met |

There is no flag to go on regardless: the way out is a new fingerprint, which is a reviewed line.

Hooks break as silently as patches when vLLM renames something, so they are in the same report,
with every class that we derive from vLLM (how many of its methods ours overrides, how many of those
without calling the original) and every name that we import:

```
ascend-run patches check                      # the installed vLLM
ascend-run patches check --vllm 0.33.0        # recorded evidence of a version
ascend-run patches check --vllm ~/src/vllm    # a checkout; REPOSITORY@REVISION without checking out
ascend-run patches check --targets vllm-ascend --vllm 0.33.0
ascend-run patches diff 0.32.0 0.33.0
ascend-run patches list recipe=NAME           # what one deployment registers and changes, and why
ascend-run patches show KEY
```

Everything is read from source text: neither vLLM nor torch is imported. A fingerprint is twelve hex
digits over the syntax tree, blind to comments, docstrings and layout. `patches record --vllm PLACE`
writes the evidence of a version into `registry/vllm_versions` after a hook or an import was added;
`scripts/record_vllm_evidence.sh` does it for every version."""

NEEDED_HEAD = """\
vllm-ascend (checkout 182b75ea, 2026-08-22) assigns directly to {direct} names of other packages,
and through an alias or a saved constructor to {indirect} more. For each: what it is for, what vLLM
{pinned} offers instead, and what we do.

- **vLLM {pinned}**: `hook` an official extension point reaches the same effect; `fixed` the cause
  is gone; `unaffected` the code is not reached by us, or is right as it stands; `open` neither.
- **seen at**: a line of vLLM {pinned} that shows it. A test looks each of them up.
- **ours**: `option`, `hook`, `layer`, `model` something stands in its place now; `shim` a
  substitute of the device runtime, entered as a context and counted apart from patches; `nothing`
  nothing is needed; `patch` a patch row; `not_yet` the feature behind it is not built.
- **recipes**: who would need it."""

UPGRADE_HEAD = """\
What the version does to the {count} definitions that we rely on: hooks, classes that we derive
from, methods that we override, names that we import. Measured from the source packages; the notes
are a person's reading of the differences. Nothing here was run on {version}. Check again with
`ascend-run patches check --vllm {version}`, or against sources with `--vllm PATH`.

The check sees names, parameters and code. It does not see what a method does to the attributes that
ours reads afterwards: run the tests under `tests/vllm` on the new version before trusting it."""

"""The patcher on a toy package: five precise failures with nothing applied, and the good case."""

import pytest

from ascend_recipes.errors import RecipeError
from ascend_recipes.patching.patcher import applied, apply_rows
from tests.patching.conftest import CORE


def good_row(toy):
    """A second, sound row that must not be applied when its neighbour fails."""
    return toy.row(
        target="toy_engine.core:Runner.run", action="wrap", implementation="toy_fixes:run_twice"
    )


def assert_untouched(toy):
    runner = toy.load("core").Runner()
    assert (runner.run(3), runner.kind(), runner.width) == (6, "plain", 4)


def test_target_renamed(toy, refusal):
    rows = {"bad": toy.row(), "good": good_row(toy)}
    toy.write("core", CORE.replace("scale(", "rescale("))
    # The sound row's body changed with it, but a wrapper depends on the signature only.
    found = refusal(rows)
    assert set(found) == {"patch.target_missing"}
    assert "toy_engine.core:scale does not exist in toy_engine 1.0" in found["patch.target_missing"]
    assert "renamed to 'rescale'?" in found["patch.target_missing"]
    assert_untouched(toy)


def test_target_moved(toy, refusal):
    row = toy.row()
    toy.write("core", "")
    toy.write("arithmetic", CORE)
    assert "defined in toy_engine.arithmetic:scale" in refusal({"bad": row})["patch.target_missing"]


def test_signature_changed(toy, refusal):
    rows = {"bad": toy.row(), "good": good_row(toy)}
    toy.write("core", CORE.replace("value, factor=2", "value, factor=2, *, exact=False"))
    found = refusal(rows)
    assert set(found) == {"patch.signature_changed", "patch.implementation_mismatch"}
    assert "it is now (value, factor=, *, exact=)" in found["patch.signature_changed"]
    assert "it lacks 'exact'" in found["patch.implementation_mismatch"]
    assert_untouched(toy)


def test_body_changed(toy, refusal):
    rows = {"bad": toy.row(), "good": good_row(toy)}
    toy.write("core", CORE.replace("value * factor", "factor * value"))
    found = refusal(rows)
    assert set(found) == {"patch.body_changed"}
    assert "core.py:6" in found["patch.body_changed"]
    assert_untouched(toy)


def test_layout_and_comments_are_no_change(toy):
    row = toy.row()
    changed = CORE.replace("  # a comment", "").replace("Docstring.", "Another.")
    toy.write("core", changed.replace("LIMIT = 4", "\n\nLIMIT = 4"))
    with applied({"row": row}, "worker"):
        assert toy.load("core").scale(1) == 20


def test_imported_early_under_another_name(toy, refusal):
    toy.write("user", "from toy_engine.core import scale as scale_it\n")
    toy.load("user")
    found = refusal({"bad": toy.row(), "good": good_row(toy)})
    assert set(found) == {"patch.stale_alias"}
    assert "also bound to toy_engine.user:scale_it" in found["patch.stale_alias"]
    assert_untouched(toy)


def test_alias_that_the_row_lists_is_changed_too(toy):
    toy.write("user", "from toy_engine.core import scale as scale_it\n")
    user = toy.load("user")
    with applied({"row": toy.row(aliases=["toy_engine.user:scale_it"])}, "worker"):
        assert user.scale_it(1) == 20
    assert user.scale_it(1) == 2


def test_alias_as_class_attribute_and_early_subclass(toy, refusal):
    toy.write(
        "user",
        "from toy_engine import core\n\nclass User:\n    kernel = staticmethod(core.scale)\n",
    )
    toy.load("user")
    assert "toy_engine.user:User.kernel" in refusal({"bad": toy.row()})["patch.stale_alias"]
    row = toy.row(target="toy_engine.core:Runner", implementation="toy_fixes:scale_by_ten")
    assert "Child (subclass)" in refusal({"bad": row})["patch.stale_alias"]


def test_module_that_must_not_be_imported_yet(toy, refusal):
    toy.load("core")
    found = refusal({"bad": toy.row(before=["toy_engine.core"])})
    assert set(found) == {"patch.imported_early"}


def test_patched_twice_by_us(toy, refusal):
    row = toy.row()
    with applied({"first": row}, "worker"):
        found = refusal({"second": row})
        assert set(found) == {"patch.applied_twice"}
        assert "already changed in this process by first" in found["patch.applied_twice"]
        assert toy.load("core").scale(1) == 20
    assert toy.load("core").scale(1) == 2


@pytest.mark.parametrize("wrapped", [False, True])
def test_patched_by_somebody_else(toy, refusal, wrapped):
    core = toy.load("core")
    from functools import wraps

    def foreign(value, factor=2):
        return 0

    core.scale = wraps(core.scale)(foreign) if wrapped else foreign
    found = refusal({"bad": toy.row(), "good": good_row(toy)})
    assert set(found) == {"patch.changed_by_others"}
    assert "test_patcher.py" in found["patch.changed_by_others"]
    assert core.scale is not None
    assert core.Runner().kind() == "plain"


def test_two_rows_on_one_target_or_on_a_class_and_its_method(toy, refusal):
    assert "patch.conflict" in refusal({"a": toy.row(), "b": toy.row()})
    owner = toy.row(target="toy_engine.core:Runner")
    assert "patch.conflict" in refusal({"a": owner, "b": good_row(toy)})


def test_version_outside_range_unverified_or_expired(toy, refusal):
    assert "patch.version_out_of_range" in refusal({"bad": toy.row(versions=">=2")})
    stale = toy.row(fingerprints={"0.9": {"signature": "", "body": "0" * 12}})
    found = refusal({"bad": stale})["patch.unverified_version"]
    assert '"1.0": {signature: "' in found
    gone = toy.row(remove_when={"version_at_least": "1.0"})
    assert "delete registry/patches/bad.yaml" in refusal({"bad": gone})["patch.expired"]
    there = toy.row(remove_when={"symbol_exists": "toy_engine.core:Child"})
    assert "toy_engine.core:Child exists" in refusal({"bad": there})["patch.expired"]


def test_replacement_that_cannot_stand_for_the_target(toy, refusal):
    found = refusal({"bad": toy.row(implementation="toy_fixes:needs_more")})
    assert "requires 'extra'" in found["patch.implementation_mismatch"]
    assert "patch.implementation_missing" in refusal({"bad": toy.row(implementation="toy_fixes:x")})


def test_every_finding_of_every_row_in_one_error(toy, refusal):
    rows = {"one": toy.row(), "two": good_row(toy)}
    toy.write("core", CORE.replace("value * factor", "0").replace("run(self, value)", "run(self)"))
    found = refusal(rows)
    assert {"patch.body_changed", "patch.signature_changed"} <= set(found)
    assert toy.load("core").scale(3) == 0


def test_actions_receipts_and_undo(toy):
    rows = {
        "entry": toy.row(
            target="toy_engine.core:TABLE",
            action="add_entry",
            entry="b",
            value=2,
            implementation=None,
        ),
        "kind": toy.row(
            target="toy_engine.core:Runner.kind", implementation="toy_fixes:other_kind"
        ),
        "limit": toy.row(
            target="toy_engine.core:LIMIT", action="set_value", value=8, implementation=None
        ),
        "run": good_row(toy),
        "scale": toy.row(action="wrap", implementation="toy_fixes:scale_and_one"),
        "width": toy.row(
            target="toy_engine.core:Runner.width", action="wrap", implementation="toy_fixes:wide"
        ),
        "elsewhere": toy.row(
            target="toy_engine.core:Child", phases=["core"], implementation="toy_fixes:other_kind"
        ),
    }
    core = toy.load("core")
    before = dict(vars(core)), dict(vars(core.Runner)), dict(core.TABLE)
    done = apply_rows(rows, "worker")
    runner = core.Child()
    assert (core.TABLE["b"], core.LIMIT) == (2, 8)
    assert (runner.kind(), runner.width, runner.run(1)) == ("ours", 108, 7)
    assert core.scale.__name__ == "scale"
    receipts = {item.key: item for item in done.receipts}
    assert set(receipts) == set(rows) - {"elsewhere"}
    assert receipts["run"].before == "toy_engine.core:Runner.run"
    assert receipts["run"].after == "toy_fixes:run_twice"
    assert receipts["run"].fingerprint == rows["run"].fingerprints["1.0"]
    assert receipts["entry"].target == "toy_engine.core:TABLE[b]"
    done.undo()
    done.undo()
    assert (dict(vars(core)), dict(vars(core.Runner)), dict(core.TABLE)) == before


def test_inherited_method_is_given_to_the_subclass_and_taken_back(toy):
    row = toy.row(
        target="toy_engine.core:Child.run", action="wrap", implementation="toy_fixes:run_twice"
    )
    core = toy.load("core")
    with applied({"row": row}, "worker"):
        assert (core.Child().run(1), core.Runner().run(1)) == (4, 2)
    assert "run" not in vars(core.Child)


def test_failure_while_applying_takes_back_what_was_done(toy):
    entry = {"target": "toy_engine.core:LIMIT", "action": "add_entry", "implementation": None}
    rows = {"a": toy.row(), "b": toy.row(**entry, value=1)}
    with pytest.raises(AssertionError):
        apply_rows(rows, "worker")
    assert toy.load("core").scale(1) == 2
    apply_rows({"a": toy.row()}, "worker").undo()


def test_no_package_and_empty_plan(toy, refusal):
    fingerprints = {"1": {"body": "0" * 12}}
    row = toy.row(target="toy_absent.core:f", fingerprints=fingerprints)
    assert set(refusal({"bad": row})) == {"patch.no_package"}
    assert apply_rows({}, "worker").receipts == ()


def test_needs_cannot_be_empty(toy):
    with pytest.raises(ValueError, match="name what needs it"):
        toy.row(needs={})


def test_error_is_a_launch_failure(toy):
    with pytest.raises(RecipeError) as caught:
        apply_rows({"bad": toy.row(versions="<1")}, "worker")
    assert caught.value.exit_code == 5

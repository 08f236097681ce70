"""What a schema refuses is told in both languages, with the value that it is about."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ascend_recipes.compose import compose_recipe
from ascend_recipes.errors import RecipeError
from ascend_recipes.findings import Phrase
from ascend_recipes.schema.complaints import PhrasedError, complaint
from ascend_recipes.validate import validate_recipe


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Thing(BaseModel):
    model_config = ConfigDict(strict=True)

    whole: int = 1
    part: float = 1.0
    switch: bool = True
    text: str = ""
    name: Annotated[str, Field(pattern="^[a-z]+$")] = "a"
    positive: Annotated[int, Field(gt=0)] = 1
    counted: Annotated[int, Field(ge=1)] = 1
    share: Annotated[float, Field(lt=2)] = 1.0
    most: Annotated[float, Field(le=1)] = 1.0
    sizes: Annotated[tuple[int, ...], Field(min_length=1, max_length=2)] = (1,)
    named: dict[str, int] = {}
    choice: Literal["a", "b"] = "a"
    animal: Annotated[Cat | Dog, Field(discriminator="kind")] = Cat()
    inner: Cat = Cat()
    own: str = ""
    plain: str = ""

    @field_validator("own")
    @classmethod
    def _own(cls, text):
        raise PhrasedError(Phrase("too odd", "太怪"))

    @field_validator("plain")
    @classmethod
    def _plain(cls, text):
        raise ValueError("just odd")


def told(**values) -> Phrase:
    with pytest.raises(ValidationError) as caught:
        Thing.model_validate(values)
    (error,) = caught.value.errors()
    return complaint(error)


@pytest.mark.parametrize(
    ("values", "english", "chinese"),
    [
        ({"whole": "x"}, 'must be a whole number, not "x"', '必须是整数，而不是 "x"'),
        ({"part": "x"}, 'must be a number, not "x"', '必须是数字，而不是 "x"'),
        ({"switch": 1}, "must be true or false, not 1", "必须是 true 或 false，而不是 1"),
        ({"text": 1}, "must be text, not 1", "必须是文本，而不是 1"),
        ({"name": "A"}, 'must match ^[a-z]+$, not "A"', '必须匹配 ^[a-z]+$，而不是 "A"'),
        ({"positive": 0}, "must be greater than 0, not 0", "必须大于 0，而不是 0"),
        ({"counted": 0}, "must be at least 1, not 0", "必须不小于 1，而不是 0"),
        ({"share": 2.5}, "must be less than 2.0, not 2.5", "必须小于 2.0，而不是 2.5"),
        ({"most": 1.5}, "must be at most 1.0, not 1.5", "必须不大于 1.0，而不是 1.5"),
        ({"sizes": 1}, "must be a list, not 1", "必须是列表，而不是 1"),
        ({"sizes": ()}, "needs 1 or more items, not []", "至少需要 1 项，而不是 []"),
        (
            {"sizes": (1, 2, 3)},
            "takes 2 items at most, not [1, 2, 3]",
            "最多 2 项，而不是 [1, 2, 3]",
        ),
        ({"named": 1}, "must be keys with values, not 1", "必须是键值对，而不是 1"),
        ({"inner": 1}, "must be keys with values, not 1", "必须是键值对，而不是 1"),
        ({"choice": "c"}, "must be 'a', 'b', not \"c\"", "必须是 'a', 'b'，而不是 \"c\""),
        ({"animal": {"kind": "cow"}}, "must be one of 'cat', 'dog'", "必须是 'cat', 'dog' 之一"),
        ({"own": ""}, "too odd", "太怪"),
        ({"plain": ""}, "just odd", "just odd"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_complaints(values, english, chinese):
    assert told(**values) == Phrase(english, chinese)


def test_a_kind_that_nobody_translated_is_passed_on():
    error = {"type": "rare", "loc": ("x",), "msg": "Input is odd", "input": 1}
    assert complaint(error) == Phrase("Input is odd, not 1", "Input is odd，而不是 1")


@pytest.mark.parametrize(
    ("word", "english", "chinese"),
    [
        ("env.MY_TOKEN=x", "MY_TOKEN looks like a secret", "MY_TOKEN 看起来是机密"),
        ("env.no-name=x", "is not the name of an environment variable", "不是环境变量名"),
        ("site.node_addresses=[0.0.0.0]", "that other nodes can talk to", "不是其它节点可访问"),
        ("site.proxy=http://me:secret@host", "has no user and password", "不能带用户名和密码"),
        ("roles={decode:{}}", "roles are either `serve` alone", "角色要么只有 `serve`"),
    ],
)
def test_validators_of_recipes_speak_both_languages(word, english, chinese):
    with pytest.raises(RecipeError) as caught:
        validate_recipe(compose_recipe(["recipe=deepseek_v4_a3", word]))
    (item,) = caught.value.findings
    assert english in item.message
    assert chinese in item.message_zh

"""Schemas that pydantic writes for models."""

import datetime
import enum
import uuid
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from case import case


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Address(BaseModel):
    street: str
    postcode: str = Field(pattern=r"^\d{5}$", description="Five digits")


class User(BaseModel):
    """A user of the shop."""
    id: int = Field(gt=0)
    name: str = Field(min_length=1, max_length=40)
    address: Address | None = None
    tags: list[str] = []


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: Colour
    level: Level
    ratio: float = Field(ge=0, le=1)


class Moment(BaseModel):
    day: datetime.date
    at: datetime.datetime
    lasted: datetime.timedelta
    key: uuid.UUID


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Household(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = Field(max_length=4)


class Answer(BaseModel):
    result: Cat | Dog | str | None


class Folder(BaseModel):
    name: str
    folders: list["Folder"] = Field(default_factory=list, max_length=3)


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid")
    cells: dict[str, list[float]]
    corner: tuple[int, int]
    limits: tuple[str, float, bool] | None


class Alias(BaseModel):
    from_: str = Field(alias="from", title="Sender")
    to: list[str] = Field(min_length=1)


class Envelope(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"version": 1}]})
    version: Literal[1, 2]
    body: Alias
    flags: dict[str, bool] = {}


class Base(BaseModel):
    id: int


class Derived(Base):
    model_config = ConfigDict(extra="forbid")
    score: float | None = Field(default=None, multiple_of=0.5)
    note: str = "none"


UUID = "123e4567-e89b-12d3-a456-426614174000"
USER = {"id": 1, "name": "Ada"}
PYDANTIC = [
    case("pydantic-user", User.model_json_schema(),
        [USER, {**USER, "address": {"street": "s", "postcode": "12345"}, "tags": ["a"]}, {**USER, "address": None}],
        [{"id": 0, "name": "Ada"}, {"id": 1, "name": ""}, {**USER, "address": {"street": "s", "postcode": "1"}}]),
    case("pydantic-enums", Item.model_json_schema(), [{"colour": "red", "level": 10, "ratio": 0.5}],
        [{"colour": "blue", "level": 1, "ratio": 0}, {"colour": "red", "level": 2, "ratio": 0},
            {"colour": "red", "level": 1, "ratio": 1.5}]),
    case("pydantic-times", Moment.model_json_schema(),
        [{"day": "2024-02-29", "at": "2024-01-01T00:00:00Z", "lasted": "PT5M", "key": UUID}],
        [{"day": "2024-02-30", "at": "2024-01-01T00:00:00Z", "lasted": "PT5M", "key": UUID}]),
    case("pydantic-discriminator", Household.model_json_schema(),
        [{"pets": []}, {"pets": [{"kind": "cat", "lives": 9}, {"kind": "dog", "good": True}]}],
        [{"pets": [{"kind": "cat", "good": True}]}, {"pets": [{"kind": "bird"}]}, {}]),
    case("pydantic-union", Answer.model_json_schema(),
        [{"result": "x"}, {"result": None}, {"result": {"kind": "dog", "good": False}}],
        [{"result": 1}, {"result": {"kind": "dog"}}, {}]),
    case("pydantic-recursive", Folder.model_json_schema(),
        [{"name": "a"}, {"name": "a", "folders": [{"name": "b", "folders": []}]}],
        [{"folders": []}, {"name": "a", "folders": [{}]}]),
    case("pydantic-tuples", Table.model_json_schema(), [
        {"cells": {"a": [1, 2.5]}, "corner": [1, 2], "limits": ["a", 1.5, True]},
        {"cells": {}, "corner": [0, 0], "limits": None}],
        [{"cells": {}, "corner": [1], "limits": None}, {"cells": {}, "corner": [1, 2, 3], "limits": None}]),
    case("pydantic-alias", Alias.model_json_schema(by_alias=True), [{"from": "a", "to": ["b"]}],
        [{"from_": "a", "to": ["b"]}, {"from": "a", "to": []}]),
    case("pydantic-literal-numbers", Envelope.model_json_schema(),
        [{"version": 2, "body": {"from": "a", "to": ["b"]}, "flags": {"x": True}}],
        [{"version": 3, "body": {"from": "a", "to": ["b"]}}, {"version": 1, "body": {}}]),
    case("pydantic-derived", Derived.model_json_schema(),
        [{"id": 1}, {"id": 1, "score": 2.5, "note": ""}, {"id": 1, "score": None}],
        [{"id": 1, "score": 0.3}, {"score": 1}]),
]

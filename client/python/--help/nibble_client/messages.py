"""Messages from Python values: keyword arguments, or dicts of the API's JSON form.

Every value is checked: an unknown name gets a suggestion, and a wrong value an error with the field's path, what it got
and what it wanted.
"""
from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from google.protobuf import descriptor as _descriptor
from google.protobuf.message import Message

from nibble_client.errors import field_error

M = TypeVar("M", bound=Message)

# The types of descriptors differ between versions of protobuf's type stubs.
Descriptor = Any
EnumDescriptor = Any
FieldDescriptor = Any

_KINDS = _descriptor.FieldDescriptor
_INTS = {_KINDS.CPPTYPE_INT32: 32, _KINDS.CPPTYPE_INT64: 64}
_FLOATS = (_KINDS.CPPTYPE_DOUBLE, _KINDS.CPPTYPE_FLOAT)
_MAX_DURATION_S = 315_576_000_000  # protobuf's limit: 10,000 years


def fill(message: M, values: Mapping[str, object], path: str = "") -> M:
    """Sets fields of `message`. A value of None leaves its field unset. Returns the message."""
    for name, value in values.items():
        field = find_field(message.DESCRIPTOR, name)
        if field is None:
            unknown(_join(path, name), name, field_names(message.DESCRIPTOR))
        if value is not None:
            set_field(message, field, value, _join(path, field.name))
    return message


def set_field(message: Message, field: FieldDescriptor, value: object, path: str) -> None:
    """Sets one field. Another field of its oneof that is set already is an error."""
    oneof = field.containing_oneof
    if oneof is not None and len(oneof.fields) > 1:
        other = message.WhichOneof(oneof.name)
        if other is not None and other != field.name:
            field_error(path, f"both {other} and {field.name}", "only one of them")
    if is_map(field):
        _fill_map(message, field, value, path)
    elif is_repeated(field):
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            field_error(path, describe(value), "a list")
        _extend(getattr(message, field.name), field, value, path)
    elif field.message_type is not None:
        _set_message(getattr(message, field.name), value, path)
    else:
        setattr(message, field.name, scalar(field, value, path))


def flat(message: M, values: Mapping[str, object], sections: Sequence[str]) -> M:
    """Same as `fill`, but a name may also be that of a field inside one of `sections`: with the section `sampling`,
    {"temperature": 1} means {"sampling": {"temperature": 1}}. A section whose message is a choice of a oneof must be
    set already."""
    descriptor: Descriptor = message.DESCRIPTOR
    inner: list[tuple[str, object]] = []
    for name, value in values.items():
        if find_field(descriptor, name) is None:
            inner.append((name, value))
        else:
            fill(message, {name: value})
    for name, value in inner:
        for section in sections:
            outer = descriptor.fields_by_name[section]
            field = find_field(outer.message_type, name)
            if field is not None:
                if value is not None:
                    set_field(getattr(message, section), field, value, f"{section}.{field.name}")
                break
        else:
            names = field_names(descriptor)
            for section in sections:
                names += field_names(descriptor.fields_by_name[section].message_type)
            unknown(name, name, names)
    return message


def find_field(descriptor: Descriptor, name: str) -> FieldDescriptor | None:
    """A field by its name, or by its name in JSON (maxSteps)."""
    if name in descriptor.fields_by_name:
        return descriptor.fields_by_name[name]
    return next((field for field in descriptor.fields if field.json_name == name), None)


def field_names(descriptor: Descriptor) -> list[str]:
    return [field.name for field in descriptor.fields]


def unknown(path: str, name: str, names: Sequence[str]) -> NoReturn:
    """Raises FieldError for a name that does not exist."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    field_error(path, f"an unknown field {name!r}",
                f"{near[0]!r}?" if near else f"one of {', '.join(sorted(set(names)))}")


def enum_value(enum: EnumDescriptor, value: object, path: str) -> int:
    """The number of an enum's value: from the number, from its whole name, or from its own part of the name in any
    case ("int8" of MODEL_FORMAT_INT8)."""
    names = [short_name(enum, number) for number in enum.values_by_number if number != 0]
    if isinstance(value, str):
        full = enum.values_by_name.get(value)
        if full is not None:
            return int(full.number)
        for number in enum.values_by_number:
            if number != 0 and short_name(enum, number) == value.lower():
                return int(number)
        near = difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.6)
        field_error(path, repr(value), f"{near[0]!r}?" if near else f"one of {', '.join(names)}")
    if isinstance(value, int) and not isinstance(value, bool) and value in enum.values_by_number:
        return value
    field_error(path, describe(value), f"one of {', '.join(names)}")


def short_name(enum: EnumDescriptor, number: int) -> str:
    """An enum's value as users write it: "int8" for MODEL_FORMAT_INT8; the number if this client does not know it."""
    value = enum.values_by_number.get(number)
    if value is None:
        return str(number)
    name: str = value.name
    return name.removeprefix(enum.values_by_number[0].name.removesuffix("UNSPECIFIED")).lower()


def enum_name(message: Message, field: str) -> str:
    """An enum field of a message as users write it: enum_name(job, "state") is "running"."""
    found = message.DESCRIPTOR.fields_by_name.get(field)
    if found is None or found.enum_type is None or is_repeated(found):
        names = [each.name for each in message.DESCRIPTOR.fields if each.enum_type and not is_repeated(each)]
        field_error("field", repr(field), f"an enum field of {message.DESCRIPTOR.name}: {', '.join(names) or 'none'}")
    return short_name(found.enum_type, getattr(message, field))


def scalar(field: FieldDescriptor, value: object, path: str) -> Any:
    """The value of one scalar field, checked."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of numpy or pandas
        value = value.item()
    kind = field.cpp_type
    if kind == _KINDS.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return enum_value(field.enum_type, value, path)
    if kind == _KINDS.CPPTYPE_BOOL:
        return value if isinstance(value, bool) else field_error(path, describe(value), "True or False")
    if kind in _INTS:
        bits = _INTS[kind]
        whole = value if isinstance(value, int) and not isinstance(value, bool) else None
        if isinstance(value, float) and value.is_integer():
            whole = int(value)
        if whole is None or not -(1 << (bits - 1)) <= whole < 1 << (bits - 1):
            field_error(path, describe(value), f"a whole number of at most {bits} bits")
        return whole
    if kind in _FLOATS:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            field_error(path, describe(value), "a number")
        return float(value)
    if field.type == _KINDS.TYPE_BYTES:
        return value if isinstance(value, bytes) else field_error(path, describe(value), "bytes")
    if not isinstance(value, str):
        field_error(path, describe(value), "a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        field_error(path, "a text with a lone surrogate", "a text that UTF-8 can encode")
    return value


def describe(value: object) -> str:
    """A value for an error: its type, and the value itself if it is short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:57]}..."


def is_repeated(field: FieldDescriptor) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == 3)  # LABEL_REPEATED, in protobuf before 6.31


def is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _set_message(message: Message, value: object, path: str) -> None:
    """Sets a message from one of its own type, a dict, or, for a duration, a number of seconds."""
    if isinstance(value, Message):
        if value.DESCRIPTOR.full_name != message.DESCRIPTOR.full_name:
            field_error(path, f"a {value.DESCRIPTOR.full_name}", f"a {message.DESCRIPTOR.full_name}")
        message.CopyFrom(value)
    elif message.DESCRIPTOR.full_name == "google.protobuf.Duration":
        _set_duration(message, value, path)
    elif isinstance(value, Mapping):
        message.SetInParent()
        fill(message, value, path)
    else:
        field_error(path, describe(value),
                    f"a dict with fields of {message.DESCRIPTOR.name}: {', '.join(field_names(message.DESCRIPTOR))}")


def _set_duration(message: Message, value: object, path: str) -> None:
    seconds = value
    if isinstance(value, str) and value.endswith("s"):  # the JSON form
        try:
            seconds = float(value[:-1])
        except ValueError:
            pass
    number = math.nan if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) else float(seconds)
    if not abs(number) <= _MAX_DURATION_S:
        field_error(path, describe(value), "a number of seconds, or a text such as '90s'")
    nanos = round(number * 1e9)
    whole = int(nanos / 1e9)
    fill(message, {"seconds": whole, "nanos": nanos - whole * 1_000_000_000})


def _fill_map(message: Message, field: FieldDescriptor, value: object, path: str) -> None:
    if not isinstance(value, Mapping):
        field_error(path, describe(value), "a dict")
    assert field.message_type is not None
    key_field, value_field = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    target = getattr(message, field.name)
    for key, item in value.items():
        place = f"{path}[{key!r}]"
        if key_field.cpp_type in _INTS and isinstance(key, str) and key.lstrip("-").isdigit():
            key = int(key)  # JSON has only texts as keys
        target[scalar(key_field, key, place)] = scalar(value_field, item, place)


def _extend(target: Any, field: FieldDescriptor, values: Iterable[object], path: str) -> None:
    for index, value in enumerate(values):
        place = f"{path}[{index}]"
        if field.message_type is not None:
            _set_message(target.add(), value, place)
        else:
            target.append(scalar(field, value, place))

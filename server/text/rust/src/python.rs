//! Writes values like Python. Chat templates rely on Python's str() and json.dumps(), so
//! a rendered prompt must show `None`, `True`, `1e+16`.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind};

// Deeper than any message; keeps printing from overflowing the stack.
const MAX_DEPTH: usize = 128;
// Blanks per level that tojson indents, if `indent` is a number. More are cut, so that no
// template prints megabytes of them.
const MAX_INDENT: usize = 64;

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, "value nests too deeply to be printed")
}

/// repr() of a finite float: shortest digits that read back, exponent only outside 1e-4..1e16.
fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

fn number(value: &Value) -> Result<String, Error> {
    match f64::try_from(value.clone()) {
        // Python fails earlier, at the division by zero that gives such a number.
        Ok(number) if !number.is_finite() => {
            Err(Error::new(ErrorKind::InvalidOperation, "a number is not finite"))
        }
        Ok(number) if !value.is_integer() => Ok(float(number)),
        _ => Ok(value.to_string()),
    }
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn write(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)?),
        ValueKind::String if depth > 0 => repr_string(value.as_str().unwrap_or_default(), out),
        // A slice or a sum of lists is an Iterable here and a list in Python.
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write(&item, depth + 1, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write(&key, depth + 1, out)?;
                out.push_str(": ");
                write(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// str(value)
pub fn str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write(value, 0, &mut out)?;
    Ok(out)
}

struct JsonStyle {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

fn json_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if ensure_ascii && (c as u32) > 0x7e => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

impl JsonStyle {
    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)?),
            ValueKind::String => {
                json_string(value.as_str().unwrap_or_default(), self.ensure_ascii, out)
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { &self.item_separator });
                    self.line(depth + 1, out);
                    self.write(item, depth + 1, out)?;
                }
                if !items.is_empty() {
                    self.line(depth, out);
                }
                out.push(']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { &self.item_separator });
                    self.line(depth + 1, out);
                    // Python turns the keys 1, True and None into strings.
                    let mut name = String::new();
                    match key.as_str() {
                        Some(text) => name.push_str(text),
                        None => self.write(key, depth + 1, &mut name)?,
                    }
                    json_string(&name, self.ensure_ascii, out);
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, depth + 1, out)?;
                }
                if !keys.is_empty() {
                    self.line(depth, out);
                }
                out.push('}');
            }
            kind => {
                let text = format!("a value of kind {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
        Ok(())
    }
}

/// The `tojson` of transformers: json.dumps(value, ensure_ascii=False, indent=None,
/// separators=None, sort_keys=False), which unlike Jinja's own does not escape HTML.
pub fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let option = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(named.or_else(|| args.get(index).cloned()).filter(|v| !v.is_none()))
    };
    let ensure_ascii = option(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = match option(1, "indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_string),
        Some(count) => Some(" ".repeat(usize::try_from(count)?.min(MAX_INDENT))),
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let mut style = JsonStyle {
        ensure_ascii,
        indent,
        item_separator: comma.into(),
        key_separator: ": ".into(),
        sort_keys: option(3, "sort_keys")?.is_some_and(|v| v.is_true()),
    };
    if let Some(separators) = option(2, "separators")? {
        style.item_separator = self::str(&separators.get_item_by_index(0)?)?;
        style.key_separator = self::str(&separators.get_item_by_index(1)?)?;
    }
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

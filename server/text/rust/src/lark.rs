//! Prepares the JSON schemas inside a Lark grammar (`%json {...}`), which `llguidance` would compile with its own
//! options.

use crate::budget::Failure;
use crate::schema::{prepare_schema, Blanks};
use serde_json::{Deserializer, Value};

const JSON: &str = "%json";
const OPTIONS: &str = "%llguidance"; // options of the crate; one allows bytes that are not UTF-8

/// Bytes of the text from `begin` to its end mark, both included. The end mark is `end` without a backslash before it.
fn quoted(source: &str, begin: usize, end: u8) -> usize {
    let bytes = source.as_bytes();
    let mut i = begin + 1;
    while i < bytes.len() && bytes[i] != end && bytes[i] != b'\n' {
        i += if bytes[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(bytes.len()) - begin
}

/// Bytes of the text, regular expression or comment that begins here; 0: none does.
fn skipped(source: &str, at: usize) -> usize {
    let rest = &source[at..];
    if rest.starts_with('#') || rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    match rest.as_bytes().first() {
        Some(b'"') => quoted(source, at, b'"'),
        Some(b'/') => quoted(source, at, b'/'),
        _ => 0,
    }
}

/// A user's grammar, which may not name tokens by number or set options of the crate.
pub fn prepare_lark(source: &str) -> Result<String, Failure> {
    prepare(source, Blanks::None, true)
}

/// A grammar of the server for calls of tools, whose schemas have blanks as chat templates write them.
pub fn prepare_tools(source: &str) -> Result<String, Failure> {
    prepare(source, Blanks::AfterSeparators, false)
}

fn prepare(source: &str, blanks: Blanks, of_user: bool) -> Result<String, Failure> {
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    while i < source.len() {
        let mut end = i + skipped(source, i);
        while !source.is_char_boundary(end) {
            end += 1;
        }
        if of_user && end == i && source[i..].starts_with("<[") {
            let why =
                "has a token by its number, wanted a special token by its name, such as <|name|>";
            return Err(Failure::Invalid(why.to_string()));
        }
        if of_user && end == i && source[i..].starts_with(OPTIONS) {
            return Err(Failure::Invalid(format!("has {OPTIONS}, which is not allowed")));
        }
        if end == i && source[i..].starts_with(JSON) {
            let json = &source[i + JSON.len()..];
            let mut values = Deserializer::from_str(json).into_iter::<Value>();
            let schema = match values.next() {
                Some(Ok(schema)) => schema,
                Some(Err(error)) => {
                    return Err(Failure::Invalid(format!("{JSON} has no JSON: {error}")))
                }
                None => return Err(Failure::Invalid(format!("{JSON} has no JSON"))),
            };
            let size = values.byte_offset();
            out.push_str(JSON);
            out.push(' ');
            out.push_str(&prepare_schema(schema, blanks)?.to_string());
            i += JSON.len() + size;
            continue;
        }
        if end == i {
            end = i + source[i..].chars().next().map_or(1, char::len_utf8);
        }
        out.push_str(&source[i..end]);
        i = end;
    }
    Ok(out)
}

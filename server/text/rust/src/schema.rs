//! Prepares a JSON schema for `llguidance`: refuses what a grammar cannot enforce, by its path, and writes the rest in a
//! form that the crate enforces exactly. The crate itself ignores a keyword that the schema's draft does not have, and
//! takes options from a schema.

use crate::budget::Failure;
use llguidance::regex_to_lark;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};
use serde_json::{json, Map, Value};
use std::collections::{HashMap, HashSet};

// These would need a memory of the text before, or a text that must not match. The last ones are of draft 3.
const NOT_ENFORCED: [&str; 20] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "x-guidance",
    "disallow",
    "divisibleBy",
    "extends",
];
// These only name a place.
const ANCHORS: [&str; 2] = ["$dynamicAnchor", "$recursiveAnchor"];
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
const DRAFTS: [&str; 5] = ["draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12"];
const ALL_TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];
// Larger integers are not exact in f64, with which the crate computes.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
// Each multiple is a state of the lexer. Decimals count as scaled to integers.
const MAX_MULTIPLE: f64 = 10_000.0;
const MAX_DECIMALS: i32 = 6;

// The crate's own expressions take 29 February of every year, the year 0 and the second 60, which RFC 3339 parsers
// refuse.
const LEAP_YEAR: &str =
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
const YEAR: &str = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})";
const DAY_OF_YEAR: &str = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])\
    |(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const MAX_HOST_NAME: u64 = 253;

/// The path of a member, as JSON Pointer writes it.
fn step(path: &str, name: &str) -> String {
    format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// The path as a fragment of a URI, as references write it.
fn place(path: &str) -> String {
    if path.starts_with('/') {
        format!("#{path}")
    } else {
        path.to_string()
    }
}

fn refuse<T>(path: &str, why: &str) -> Result<T, Failure> {
    let place = if path.is_empty() { "the schema".to_string() } else { place(path) };
    Err(Failure::Invalid(format!("{place} {why}")))
}

fn strict_format(name: &str) -> Option<String> {
    let date = format!("(?:{YEAR}-{DAY_OF_YEAR}|{LEAP_YEAR}-02-29)");
    match name {
        "date" => Some(format!("^{date}$")),
        "date-time" => Some(format!("^{date}[tT]{TIME}$")),
        "time" => Some(format!("^{TIME}$")),
        _ => None,
    }
}

fn add_condition(fields: &mut Map<String, Value>, condition: Value) {
    let all = fields.entry("allOf").or_insert_with(|| json!([]));
    if let Some(list) = all.as_array_mut() {
        list.push(condition);
    }
}

fn may_be_text(fields: &Map<String, Value>) -> bool {
    match fields.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        _ => true,
    }
}

fn check_format(fields: &mut Map<String, Value>, path: &str) -> Result<(), Failure> {
    let Some(format) = fields.get("format").cloned() else { return Ok(()) };
    if !may_be_text(fields) {
        return Ok(()); // of a number, it is an annotation
    }
    let here = format!("{path}/format");
    let Some(name) = format.as_str() else { return refuse(&here, "is not a text") };
    if !FORMATS.contains(&name) {
        let known = FORMATS.join(", ");
        return refuse(
            &here,
            &format!("is {name:?}, which cannot be enforced, wanted one of {known}"),
        );
    }
    if let Some(pattern) = strict_format(name) {
        add_condition(fields, json!({ "pattern": pattern }));
    }
    if name == "hostname" {
        add_condition(fields, json!({ "maxLength": MAX_HOST_NAME }));
    }
    Ok(())
}

fn check_exact(value: &Value, path: &str) -> Result<(), Failure> {
    match value {
        Value::Number(number) => {
            let value = number.as_f64().unwrap_or(f64::INFINITY);
            // 2^53 + 1 is read as 2^53.
            if !number.is_f64() && value.abs() >= MAX_EXACT {
                return refuse(path, &format!("has {number}, wanted integers below 2^53"));
            }
            Ok(())
        }
        Value::Array(values) => values.iter().try_for_each(|value| check_exact(value, path)),
        Value::Object(values) => values.values().try_for_each(|value| check_exact(value, path)),
        _ => Ok(()),
    }
}

fn check_multiple(value: &Value, path: &str) -> Result<(), Failure> {
    let number = value.as_f64().unwrap_or(0.0).abs();
    let scaled = (0..=MAX_DECIMALS)
        .map(|decimals| number * 10f64.powi(decimals))
        .find(|scaled| (scaled - scaled.round()).abs() < 1e-9 * scaled);
    match scaled {
        Some(scaled) if scaled >= 1.0 && scaled <= MAX_MULTIPLE => Ok(()),
        _ => refuse(path, &format!("is {value}, wanted 1 to {MAX_MULTIPLE} after its decimals are made digits, at most {MAX_DECIMALS}")),
    }
}

/// Removes U+0000 from a class of characters that has all control characters but not the quotation mark or the
/// backslash. The crate allows every escape in a text for such a class, also `\"`.
fn without_zero(hir: &Hir) -> Hir {
    let many = |parts: &[Hir]| parts.iter().map(without_zero).collect::<Vec<Hir>>();
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            let has =
                |c: char| class.ranges().iter().any(|range| range.start() <= c && c <= range.end());
            let controls = ('\0'..'\x20').filter(|&c| c != '\n').all(has);
            if !controls || (has('"') && has('\\')) {
                return hir.clone();
            }
            let mut narrow = class.clone();
            narrow.difference(&ClassUnicode::new([ClassUnicodeRange::new('\0', '\0')]));
            Hir::class(Class::Unicode(narrow))
        }
        HirKind::Repetition(repetition) => {
            let mut copy = repetition.clone();
            copy.sub = Box::new(without_zero(&repetition.sub));
            Hir::repetition(copy)
        }
        HirKind::Capture(capture) => without_zero(&capture.sub),
        HirKind::Concat(parts) => Hir::concat(many(parts)),
        HirKind::Alternation(parts) => Hir::alternation(many(parts)),
        _ => hir.clone(),
    }
}

/// `error`: of regex_syntax, whose last line has the reason.
pub fn wrong_expression(error: &str) -> String {
    let reason = error.rsplit("error: ").next().unwrap_or_default();
    format!("is not a supported regular expression: {reason}")
}

fn exact_pattern(pattern: &str, path: &str) -> Result<String, Failure> {
    // As the crate does: \d and \w are ASCII, as in JavaScript.
    let lark = regex_to_lark(pattern, "dw");
    match regex_syntax::parse(&lark) {
        Ok(hir) => {
            let exact = without_zero(&hir);
            Ok(if exact == hir { pattern.to_string() } else { exact.to_string() })
        }
        Err(error) => refuse(path, &wrong_expression(&error.to_string())),
    }
}

fn check_patterns(fields: &mut Map<String, Value>, path: &str) -> Result<(), Failure> {
    if let Some(Value::String(pattern)) = fields.get_mut("pattern") {
        *pattern = exact_pattern(pattern, &format!("{path}/pattern"))?;
    }
    if let Some(Value::Object(schemas)) = fields.get_mut("patternProperties") {
        let mut exact = Map::new();
        for (pattern, schema) in std::mem::take(schemas) {
            let here = format!("{path}/patternProperties");
            exact.insert(exact_pattern(&pattern, &here)?, schema);
        }
        *schemas = exact;
    }
    Ok(())
}

fn check_shapes(fields: &Map<String, Value>, path: &str) -> Result<(), Failure> {
    for (key, value) in fields {
        let here = format!("{path}/{key}");
        let right = match key.as_str() {
            "type" => match value {
                Value::String(name) => TYPES.contains(&name.as_str()),
                Value::Array(names) => {
                    let known =
                        |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
                    !names.is_empty() && names.iter().all(known)
                }
                _ => false,
            },
            "required" => value.as_array().is_some_and(|names| names.iter().all(Value::is_string)),
            "allOf" | "anyOf" | "oneOf" | "enum" => {
                value.as_array().is_some_and(|list| !list.is_empty())
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => value.is_u64(),
            "properties" | "patternProperties" | "$defs" | "definitions" => value.is_object(),
            _ => true,
        };
        if !right {
            return refuse(&here, "does not have the form that JSON Schema gives it");
        }
    }
    Ok(())
}

/// An object may have a property twice if its name is not in `properties`, so only required ones are counted reliably.
fn check_min_properties(fields: &Map<String, Value>, path: &str) -> Result<(), Failure> {
    let minimum = fields.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let required = fields.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    let open = fields.get("additionalProperties") != Some(&Value::Bool(false))
        || fields.contains_key("patternProperties");
    if open && minimum > 1 && minimum > required {
        let why = format!(
            "is {minimum}, which cannot be enforced beside properties that are not listed, wanted at most 1 or the number of required properties"
        );
        return refuse(&format!("{path}/minProperties"), &why);
    }
    Ok(())
}

fn drop_neutral(fields: &mut Map<String, Value>) {
    if fields.get("uniqueItems") == Some(&Value::Bool(false)) {
        fields.shift_remove("uniqueItems");
    }
    for (keys, needs) in [(["then", "else"], "if"), (["minContains", "maxContains"], "contains")] {
        if !fields.contains_key(needs) {
            keys.iter().for_each(|&key| drop(fields.shift_remove(key)));
        }
    }
    let any_name = fields.get("propertyNames").is_some_and(|names| {
        names == &Value::Bool(true) || names == &json!({}) || names == &json!({ "type": "string" })
    });
    if any_name {
        fields.shift_remove("propertyNames");
    }
    ANCHORS.iter().for_each(|&key| drop(fields.shift_remove(key)));
}

/// The crate sees that references exclude each other only if it resolves them, which it does beside another keyword.
fn resolve_one_of(fields: &mut Map<String, Value>) {
    let refers = |schema: &Value| schema.get("$ref").is_some();
    let found =
        fields.get("oneOf").and_then(Value::as_array).is_some_and(|list| list.iter().any(refers));
    if found && !fields.contains_key("type") {
        fields.insert("type".to_string(), json!(ALL_TYPES));
    }
}

struct Checker {
    root: Value,
    // Schemas whose references have escapes, which the crate does not decode, by the reference.
    moved: Vec<(String, Value)>,
    // References and their paths.
    references: Vec<(String, String)>,
    // Paths of the schemas that were checked.
    checked: HashSet<String>,
}

impl Checker {
    fn reference(&mut self, value: &mut Value, path: &str) -> Result<(), Failure> {
        let Some(text) = value.as_str() else { return refuse(path, "is not a text") };
        if text != "#" && !text.starts_with("#/") {
            return refuse(path, &format!("is {text:?}, wanted \"#\" or a pointer into the schema that begins with \"#/\""));
        }
        if !text.contains(['~', '%']) {
            self.references.push((text.to_string(), path.to_string()));
            return Ok(());
        }
        let index = match self.moved.iter().position(|(reference, _)| reference == text) {
            Some(index) => index,
            None => {
                let pointer = percent_decoded(&text[1..]);
                let Some(target) = self.root.pointer(&pointer) else {
                    return refuse(path, &format!("is {text:?}, which the schema does not have"));
                };
                self.moved.push((text.to_string(), target.clone()));
                self.moved.len() - 1
            }
        };
        let reference = format!("#/$defs/{}", moved_name(index));
        self.references.push((reference.clone(), path.to_string()));
        *value = Value::String(reference);
        Ok(())
    }

    fn each(&mut self, value: &mut Value, path: &str) -> Result<(), Failure> {
        match value {
            Value::Array(schemas) => {
                for (i, schema) in schemas.iter_mut().enumerate() {
                    self.check(schema, &format!("{path}/{i}"))?;
                }
                Ok(())
            }
            Value::Object(schemas) => {
                for (name, schema) in schemas.iter_mut() {
                    self.check(schema, &step(path, name))?;
                }
                Ok(())
            }
            _ => refuse(path, "is neither an object nor an array"),
        }
    }

    fn check(&mut self, schema: &mut Value, path: &str) -> Result<(), Failure> {
        if schema.is_boolean() {
            return Ok(());
        }
        let Value::Object(fields) = schema else {
            return refuse(path, "is neither an object nor a boolean");
        };
        self.checked.insert(path.to_string());
        drop_neutral(fields);
        check_shapes(fields, path)?;
        check_min_properties(fields, path)?;
        check_patterns(fields, path)?;
        resolve_one_of(fields);
        for (key, value) in fields.iter_mut() {
            let here = format!("{path}/{key}");
            match key.as_str() {
                "$ref" => self.reference(value, &here)?,
                "properties" | "patternProperties" | "$defs" | "definitions" | "prefixItems"
                | "allOf" | "anyOf" | "oneOf" => self.each(value, &here)?,
                "items" if value.is_array() => self.each(value, &here)?,
                "items" | "additionalItems" | "additionalProperties" => self.check(value, &here)?,
                "const" | "enum" | "minimum" | "maximum" | "exclusiveMinimum"
                | "exclusiveMaximum" => check_exact(value, &here)?,
                "multipleOf" => check_multiple(value, &here)?,
                "$schema" => check_draft(value, &here)?,
                other if NOT_ENFORCED.contains(&other) => {
                    return refuse(&here, "cannot be enforced")
                }
                _ => {}
            }
        }
        // The crate would ignore keywords that are newer than the schema's draft.
        fields.shift_remove("$schema");
        check_format(fields, path)
    }
}

fn find<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(&reference[1..])
}

/// Whether a finite text matches the schema, if one matches each of the schemas that `known` refers to.
fn has_finite_text(schema: &Value, known: &HashSet<&str>) -> bool {
    let Value::Object(fields) = schema else { return schema == &Value::Bool(true) };
    let list = |key: &str| fields.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let finite = |schema: &Value| has_finite_text(schema, known);
    if fields
        .get("$ref")
        .and_then(Value::as_str)
        .is_some_and(|reference| !known.contains(reference))
    {
        return false;
    }
    if !list("allOf").iter().all(finite) {
        return false;
    }
    let options_finite = |key: &str| list(key).is_empty() || list(key).iter().any(finite);
    if !options_finite("anyOf") || !options_finite("oneOf") {
        return false;
    }
    let types = match fields.get("type") {
        Some(Value::String(name)) => vec![name.as_str()],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => return true,
    };
    let others = fields.get("additionalProperties").unwrap_or(&Value::Bool(true));
    let property = |name: &Value| {
        let named =
            fields.get("properties").and_then(|all| all.get(name.as_str().unwrap_or_default()));
        finite(named.unwrap_or(others))
    };
    let items = fields.get("items").filter(|items| !items.is_array()).unwrap_or(&Value::Bool(true));
    let element = |i: usize| finite(list("prefixItems").get(i).unwrap_or(items));
    let least = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
    types.iter().any(|&name| match name {
        "object" => list("required").iter().all(property),
        // After the listed elements, all have one schema.
        "array" => (0..least.min(list("prefixItems").len() + 1)).all(element),
        _ => true,
    })
}

/// References in the schema itself and in the schemas that these refer to.
fn used_references(root: &Value) -> HashSet<&str> {
    let mut used = HashSet::new();
    let mut left = vec![root];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(values) => left.extend(values),
            Value::Object(fields) => {
                for (key, child) in fields {
                    match (key.as_str(), child) {
                        (
                            "$defs" | "definitions" | "const" | "enum" | "default" | "examples",
                            _,
                        ) => {}
                        ("$ref", Value::String(reference)) => {
                            if used.insert(reference.as_str()) {
                                left.extend(find(root, reference));
                            }
                        }
                        _ => left.push(child),
                    }
                }
            }
            _ => {}
        }
    }
    used
}

/// Refuses references to nothing, and to schemas that refer to themselves without end.
fn check_references(root: &Value, references: &[(String, String)]) -> Result<(), Failure> {
    for (reference, path) in references {
        if find(root, reference).is_none() {
            return refuse(path, &format!("is {reference:?}, which the schema does not have"));
        }
    }
    let mut known: HashSet<&str> = HashSet::new();
    // Schemas mostly refer to later ones, so a few rounds from the end suffice.
    let last: HashMap<&str, usize> =
        references.iter().enumerate().map(|(i, (reference, _))| (reference.as_str(), i)).collect();
    let mut left: Vec<&str> = last.keys().copied().collect();
    left.sort_by_key(|reference| last[reference]);
    loop {
        let before = left.len();
        for i in (0..left.len()).rev() {
            if find(root, left[i]).is_some_and(|target| has_finite_text(target, &known)) {
                known.insert(left.remove(i));
            }
        }
        if left.len() == before {
            break;
        }
    }
    let used = used_references(root);
    let endless = |reference: &str| used.contains(reference) && !known.contains(reference);
    match references.iter().find(|(reference, _)| endless(reference)) {
        Some((reference, path)) => refuse(
            path,
            &format!(
                "is {reference:?}, which refers to itself without end, so that no text matches"
            ),
        ),
        None => Ok(()),
    }
}

fn check_draft(value: &Value, path: &str) -> Result<(), Failure> {
    match value.as_str() {
        Some(uri)
            if DRAFTS
                .iter()
                .any(|draft| uri.contains(&format!("json-schema.org/{draft}/schema"))) =>
        {
            Ok(())
        }
        _ => refuse(
            path,
            &format!("is {value}, wanted draft 4, 6, 7, 2019-09 or 2020-12 of json-schema.org"),
        ),
    }
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = (bytes[i] == b'%')
            .then(|| text.get(i + 1..i + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(code.unwrap_or(bytes[i]));
        i += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn moved_name(index: usize) -> String {
    format!("nibble-reference-{index}")
}

/// Blanks in the text that a schema gives.
#[derive(Clone, Copy, PartialEq)]
pub enum Blanks {
    None,
    /// After each comma and colon between values.
    AfterSeparators,
}

/// The schema as an object for the crate, with its options. Errors name a keyword by its path, as JSON
/// Pointer writes it.
pub fn prepare_schema(source: Value, blanks: Blanks) -> Result<Value, Failure> {
    let mut schema = match source {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => {
            return Err(Failure::Invalid("no text matches the schema false".to_string()))
        }
        other => other,
    };
    let mut checker = Checker {
        root: schema.clone(),
        moved: Vec::new(),
        references: Vec::new(),
        checked: HashSet::new(),
    };
    checker.check(&mut schema, "")?;
    let mut next = 0;
    while next < checker.moved.len() {
        // A schema that was moved may refer to others.
        let (reference, mut target) = checker.moved[next].clone();
        checker.check(&mut target, &reference)?;
        schema["$defs"][moved_name(next)] = target;
        checker.checked.insert(format!("/$defs/{}", moved_name(next)));
        next += 1;
    }
    // A schema under a keyword that JSON Schema does not have, such as /components/A.
    let mut next = 0;
    while next < checker.references.len() {
        let pointer = checker.references[next].0[1..].to_string();
        next += 1;
        let Some(target) = schema.pointer(&pointer) else { continue };
        if checker.checked.contains(&pointer) || target.is_boolean() {
            continue;
        }
        let mut target = target.clone();
        checker.check(&mut target, &pointer)?;
        if let Some(place) = schema.pointer_mut(&pointer) {
            *place = target;
        }
    }
    check_references(&schema, &checker.references)?;
    // Without more blanks, a model cannot fill its answer with them. Without \u escapes, a property has one spelling only, so
    // that a property of `properties` cannot come again as an additional one.
    let (item, key) = if blanks == Blanks::None { (",", ":") } else { (", ", ": ") };
    schema["x-guidance"] = json!({
        "whitespace_flexible": false,
        "item_separator": item,
        "key_separator": key,
        "json_allowed_escapes": "nrbtf\\\"",
    });
    Ok(schema)
}

fn collect_paths(value: &Value, keyword: &str, path: &str, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, child) in fields {
                let here = step(path, key);
                if here.ends_with(keyword) {
                    paths.push(here.clone());
                }
                collect_paths(child, keyword, &here, paths);
            }
        }
        Value::Array(values) => {
            for (i, child) in values.iter().enumerate() {
                collect_paths(child, keyword, &format!("{path}/{i}"), paths);
            }
        }
        _ => {}
    }
}

/// Adds the places to an error of the crate, which names none. If several places have the keyword, all are named, up to
/// three.
pub fn with_places(error: &str, schema: &Value) -> String {
    let quoted = error.split('\'').nth(1).unwrap_or_default();
    let (keyword, why) = if error.starts_with("oneOf constraints are not supported") {
        let why = "has schemas that do not exclude each other by type or constant, which cannot be enforced";
        ("/oneOf".to_string(), why.to_string())
    } else if error.contains("patternProperty regexes") || error.contains("can't determine if") {
        ("/patternProperties".to_string(), format!("cannot be enforced: {error}"))
    } else if error.contains("min/maxProperties only supported") {
        let why = "cannot be enforced: properties are listed that are not required".to_string();
        let keyword = if collected(schema, "/minProperties").is_empty() {
            "/maxProperties"
        } else {
            "/minProperties"
        };
        (keyword.to_string(), why)
    } else if error.contains("lookarounds not supported") {
        ("/pattern".to_string(), format!("cannot be enforced: {error}"))
    } else if error.contains("required property") {
        (format!("/properties/{quoted}"), format!("cannot be matched: {error}"))
    } else {
        return error.to_string();
    };
    let places = collected(schema, &keyword);
    if places.is_empty() {
        return error.to_string();
    }
    let places: Vec<String> = places.iter().take(3).map(|path| place(path)).collect();
    format!("{} {why}", places.join(" or "))
}

fn collected(schema: &Value, keyword: &str) -> Vec<String> {
    let mut paths = Vec::new();
    collect_paths(schema, keyword, "", &mut paths);
    paths
}

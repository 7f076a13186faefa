//! Checks and rewrites a template's text before minijinja parses it.

// Maximum sum of the squared lengths of all tags. minijinja folds constants again at every
// level of an expression, so compiling takes time quadratic in its length: half a second
// for 8192 characters.
const MAX_COST: usize = 8192 * 8192;
// Maximum bytes of code in all tags together. Each step of code without loops may search a
// long text and allocate nothing, and time is only checked at allocations (budget.rs). Real
// templates have less than 20 KiB.
const MAX_CODE: usize = 64 << 10;

struct Tag {
    end: usize,  // position of its `}}` or `%}` in the source, or the source's length
    code: usize, // bytes; a string literal counts as two
}

/// Reads the tag whose `{{` or `{%` is at `start`.
fn read_tag(source: &[u8], start: usize) -> Tag {
    let close: &[u8] = if source[start + 1] == b'{' { b"}}" } else { b"%}" };
    let mut at = start + 2;
    let mut code = 0;
    let mut braces = 0usize;
    while at < source.len() && !(braces == 0 && source[at..].starts_with(close)) {
        match source[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < source.len() && source[at] != quote {
                    at += if source[at] == b'\\' { 2 } else { 1 };
                }
                code += 1;
            }
            b'{' => braces += 1,
            b'}' => braces = braces.saturating_sub(1),
            _ => {}
        }
        at += 1;
        code += 1;
    }
    Tag { end: at.min(source.len()), code }
}

/// The text of a tag without its whitespace control signs.
fn word(tag: &str) -> &str {
    tag.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim()
}

/// The position of the next `text`, or the source's length.
fn find(source: &str, from: usize, text: &str) -> usize {
    source[from..].find(text).map_or(source.len(), |at| from + at)
}

/// The position where the template resumes after {% raw %}: at the `%}` of {% endraw %}.
fn skip_raw(source: &str, from: usize) -> usize {
    let mut at = find(source, from, "{%");
    while at < source.len() {
        let end = find(source, at + 2, "%}");
        if word(&source[at + 2..end]) == "endraw" {
            return end;
        }
        at = find(source, at + 2, "{%");
    }
    at
}

/// The whitespace control signs at both ends of the text between `{%` and `%}`.
fn signs(inner: &str) -> (&str, &str) {
    let sign = |c: Option<char>| match c {
        Some('-') => "-",
        Some('+') => "+",
        _ => "",
    };
    (sign(inner.chars().next()), sign(inner.chars().next_back()))
}

fn is_name_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first word of a tag: "for" in `for(a, b) in c`.
fn keyword(tag: &str) -> &str {
    &tag[..tag.find(|c| !is_name_character(c)).unwrap_or(tag.len())]
}

/// The variables of `for a, b in ...`.
fn loop_variables(tag: &str) -> Vec<&str> {
    let names = tag["for".len()..].split(|c| !is_name_character(c));
    names.filter(|name| !name.is_empty()).take_while(|name| *name != "in").collect()
}

/// Code that prints the result of `call`, without its last `%}`. It begins and ends with a
/// block tag, like the tag that it stands beside, so that the template removes the same
/// whitespace as before.
fn printing(call: &str) -> String {
    format!("{{%if true%}}{{{{{call}}}}}{{%endif")
}

/// The replacement of the block tag `{%inner%}`, without the last `%}`; None if the tag
/// stays as it is. `loops`: the numbers of the enclosing loops.
fn rewrite(
    inner: &str,
    marks: bool,
    loops: &mut Vec<usize>,
    num_loops: &mut usize,
) -> Option<String> {
    let tag = word(inner);
    let (before, after) = signs(inner);
    match (tag, marks) {
        ("generation", false) => Some(format!("{{%{}", inner.replace(tag, "with"))),
        ("endgeneration", false) => Some(format!("{{%{}", inner.replace(tag, "endwith"))),
        ("generation", true) => {
            let mark = printing("__nibble_generation(true)");
            Some(format!("{{%{before}with%}}{mark} {after}"))
        }
        // Here the mark comes first, so it gets the tag's first sign.
        ("endgeneration", true) => {
            let mark = printing("__nibble_generation(false)");
            let mark = mark.replacen("{%", &format!("{{%{before}"), 1);
            Some(format!("{mark}%}}{{%endwith {after}"))
        }
        (_, true) if keyword(tag) == "for" => {
            *num_loops += 1;
            loops.push(*num_loops);
            let variables = loop_variables(tag).join(",");
            let mark = printing(&format!("__nibble_turn({num_loops},[{variables}])"));
            Some(format!("{{%{before} {tag} %}}{mark} {after}"))
        }
        (_, true) if keyword(tag) == "endfor" => {
            let mark = printing(&format!("__nibble_end({})", loops.pop()?));
            Some(format!("{{%{before} {tag} %}}{mark} {after}"))
        }
        _ => None,
    }
}

/// Whether the template has a {% generation %} block.
pub fn has_generation(source: &str) -> bool {
    // prepare() does not replace tags in comments and raw text.
    prepare(source, true).is_ok_and(|text| text.contains("__nibble_generation(true)"))
}

/// Checks the limits above, and replaces each {% generation %}, with which transformers
/// marks the assistant's text, by {% with %}: both print their bodies, but minijinja
/// supports only {% with %}. `marks`: each such block also prints a mark at both ends, and
/// each loop prints one when an iteration begins and one after the last (marks.rs).
pub fn prepare(source: &str, marks: bool) -> Result<String, String> {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let (mut cost, mut code) = (0usize, 0);
    let (mut loops, mut num_loops) = (Vec::new(), 0);
    let mut at = find(source, 0, "{");
    while at < source.len() {
        let next = match source.as_bytes().get(at + 1) {
            Some(b'#') => find(source, at + 2, "#}"),
            Some(b'{' | b'%') => {
                let tag = read_tag(source.as_bytes(), at);
                cost = cost.saturating_add(tag.code * tag.code);
                code += tag.code;
                let is_block = source.as_bytes()[at + 1] == b'%';
                let inner = source.get(at + 2..tag.end).unwrap_or_default();
                if is_block {
                    if let Some(text) = rewrite(inner, marks, &mut loops, &mut num_loops) {
                        out.push_str(&source[copied..at]);
                        out.push_str(&text);
                        copied = tag.end;
                    }
                }
                if is_block && word(inner) == "raw" {
                    skip_raw(source, tag.end)
                } else {
                    tag.end
                }
            }
            _ => at + 1,
        };
        at = find(source, next, "{");
    }
    if cost > MAX_COST {
        return Err("has an expression that is too long, or too many long expressions".into());
    }
    if code > MAX_CODE {
        return Err(format!("has {code} bytes of code, wanted at most {MAX_CODE}"));
    }
    Ok(out + &source[copied..])
}

//! What is done to a template's text before minijinja parses it.

// minijinja folds constants again at every level of an expression, so compiling
// takes time as the square of its length: 8'192 characters take half a second.
const MAX_COST: usize = 8192 * 8192;

/// The tag whose `{{` or `{%` is at `start`.
struct Tag {
    end: usize,  // of the source, before the closing marks
    code: usize, // bytes, a string literal counting as two
}

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

fn word(tag: &str) -> &str {
    tag.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim()
}

fn find(source: &str, from: usize, text: &str) -> usize {
    source[from..].find(text).map_or(source.len(), |at| from + at)
}

/// Where the text after {% raw %} goes on to be a template.
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

/// transformers marks the assistant's text with {% generation %}, which prints its
/// body. {% with %} does the same and minijinja knows it.
pub fn prepare(source: &str) -> Result<String, String> {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let mut cost = 0usize;
    let mut at = find(source, 0, "{");
    while at < source.len() {
        let next = match source.as_bytes().get(at + 1) {
            Some(b'#') => find(source, at + 2, "#}"),
            Some(b'{' | b'%') => {
                let tag = read_tag(source.as_bytes(), at);
                cost = cost.saturating_add(tag.code * tag.code);
                let inner = source.get(at + 2..tag.end).unwrap_or_default();
                let known = match word(inner) {
                    "generation" => "with",
                    "endgeneration" => "endwith",
                    _ => "",
                };
                let is_block = source.as_bytes()[at + 1] == b'%';
                if is_block && !known.is_empty() {
                    out.push_str(&source[copied..at + 2]);
                    out.push_str(&inner.replace(word(inner), known));
                    copied = tag.end;
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
        return Err("an expression is too long, or too many are long".into());
    }
    Ok(out + &source[copied..])
}

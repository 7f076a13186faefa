//! Finds a conversation's turns in its rendering.
//!
//! A second copy of the template (source.rs) prints marks: at both ends of each
//! {% generation %} block, and wherever a loop begins or ends an iteration for a message.
//! The text that the loop prints in that iteration is the message's turn, whatever the
//! template does to its content. Without the marks, the text must equal the rendering of
//! the original template; otherwise the turns are unknown.

use minijinja::value::{Enumerator, Object, Value};
use std::cell::RefCell;
use std::collections::hash_map::DefaultHasher;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Bytes [begin, end) of the rendering.
#[derive(Clone, Copy)]
pub struct Part {
    pub begin: usize,
    pub end: usize,
}

#[derive(Default)]
pub struct Turns {
    /// One per message: the text that a loop over messages printed for it. Empty if that
    /// is only whitespace.
    pub messages: Vec<Part>,
    /// One per {% generation %} block, in order.
    pub generation: Vec<Part>,
}

/// A message as the template sees it: its fields, with its number for the marks.
#[derive(Debug)]
pub struct Message {
    pub index: usize,
    pub fields: Value,
}

impl Object for Message {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.fields.as_object()?.get_value(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match self.fields.try_iter() {
            Ok(keys) => Enumerator::Values(keys.collect()),
            Err(_) => Enumerator::NonEnumerable,
        }
    }
}

/// The beginning of each mark: a text that does not occur in the rendering.
pub fn delimiter(rendered: &str) -> Result<String, String> {
    let mut hash = DefaultHasher::new();
    rendered.hash(&mut hash);
    for salt in 0..4u8 {
        salt.hash(&mut hash);
        // Private-use characters: no template strips, escapes or capitalizes them.
        let text = format!("\u{e0f0}{:016x}\u{e0f1}", hash.finish());
        if !rendered.contains(&text) {
            return Ok(text);
        }
    }
    Err("the text contains every mark that was tried".into())
}

#[derive(Default)]
struct Printer {
    delimiter: String,
    // Loops that are in the iteration of a message.
    open: HashSet<usize>,
}

thread_local! {
    // State of the rendering that runs on this thread.
    static PRINTER: RefCell<Printer> = RefCell::default();
}

pub fn start(delimiter: &str) {
    PRINTER.set(Printer { delimiter: delimiter.into(), open: HashSet::new() });
}

/// A mark is the delimiter, one of these texts and ";": "tLOOP,MESSAGE" (an iteration for a message
/// begins, and the one before ends), "eLOOP" (the iteration ends), "g" or "h" (a {% generation %}
/// block begins or ends).
fn print(mark: String) -> String {
    PRINTER.with_borrow(|printer| format!("{}{mark};", printer.delimiter))
}

/// {% for %}: an iteration with these variables begins.
pub fn turn(number: usize, variables: Vec<Value>) -> String {
    let message = variables.iter().find_map(|value| value.downcast_object_ref::<Message>());
    let Some(message) = message else { return end(number) };
    PRINTER.with_borrow_mut(|printer| printer.open.insert(number));
    print(format!("t{number},{}", message.index))
}

/// {% endfor %}: the loop has ended, or its iteration is not for a message.
pub fn end(number: usize) -> String {
    let was_open = PRINTER.with_borrow_mut(|printer| printer.open.remove(&number));
    if was_open {
        print(format!("e{number}"))
    } else {
        String::new()
    }
}

pub fn generation(begins: bool) -> String {
    print(if begins { "g" } else { "h" }.into())
}

const CHANGED: &str = "the template changes the marks of its turns";
const OVERLAP: &str = "turns overlap";

struct Open {
    number: usize,
    message: usize,
    begin: usize,
}

struct Reader<'a> {
    rendered: &'a str,
    open: Vec<Open>,
    generation: Vec<usize>,
    turns: Turns,
}

impl Reader<'_> {
    fn is_blank(&self, part: Part) -> bool {
        self.rendered.get(part.begin..part.end).is_none_or(|text| text.trim().is_empty())
    }

    fn leave(&mut self, end: usize) -> Result<(), String> {
        let Some(open) = self.open.pop() else { return Err(OVERLAP.into()) };
        let part = Part { begin: open.begin, end };
        // A loop that only looks at messages prints nothing for them.
        if self.is_blank(part) {
            return Ok(());
        }
        let known = self.turns.messages.get_mut(open.message).ok_or(CHANGED)?;
        if known.end > known.begin {
            return Err(format!("message {} is rendered twice", open.message + 1));
        }
        *known = part;
        Ok(())
    }

    fn mark(&mut self, mark: &str, at: usize) -> Result<(), String> {
        let number = |text: &str| text.parse::<usize>().map_err(|_| CHANGED.to_string());
        if let Some((loop_number, message)) =
            mark.strip_prefix('t').and_then(|rest| rest.split_once(','))
        {
            let (loop_number, message) = (number(loop_number)?, number(message)?);
            if self.open.last().is_some_and(|open| open.number == loop_number) {
                self.leave(at)?;
            }
            self.open.push(Open { number: loop_number, message, begin: at });
        } else if let Some(loop_number) = mark.strip_prefix('e') {
            let loop_number = number(loop_number)?;
            if self.open.last().is_none_or(|open| open.number != loop_number) {
                return Err(OVERLAP.into());
            }
            self.leave(at)?;
        } else if mark == "g" {
            self.generation.push(at);
        } else if mark == "h" {
            let begin = self.generation.pop().ok_or(CHANGED)?;
            self.turns.generation.push(Part { begin, end: at });
        } else {
            return Err(CHANGED.into());
        }
        Ok(())
    }
}

/// `rendered`: the output of the original template; `marked`: that of its copy with marks.
pub fn read(
    rendered: &str,
    marked: &str,
    delimiter: &str,
    num_messages: usize,
) -> Result<Turns, String> {
    let mut turns = Turns::default();
    turns.messages.resize(num_messages, Part { begin: 0, end: 0 });
    let mut reader = Reader { rendered, open: Vec::new(), generation: Vec::new(), turns };
    let mut pieces = marked.split(delimiter);
    let mut plain = String::with_capacity(rendered.len());
    plain.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (mark, text) = piece.split_once(';').ok_or(CHANGED)?;
        reader.mark(mark, plain.len())?;
        plain.push_str(text);
    }
    if plain != rendered {
        return Err("the template renders different text when its turns are marked".into());
    }
    if !reader.open.is_empty() || !reader.generation.is_empty() {
        return Err(OVERLAP.into());
    }
    let mut parts = reader.turns.messages.clone();
    parts.retain(|part| part.end > part.begin);
    parts.sort_by_key(|part| part.begin);
    if parts.windows(2).any(|pair| pair[1].begin < pair[0].end) {
        return Err(OVERLAP.into());
    }
    Ok(reader.turns)
}

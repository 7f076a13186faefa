//! Renders chat templates like transformers (utils/chat_template_utils.py): the
//! same whitespace rules, globals and filters, in a sandbox without a loader.

use crate::budget::{guarded, Budget, Failure};
use crate::marks::{self, Message, Turns};
use crate::python;
use crate::source::{has_generation, prepare};
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value as Json;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

const NAME: &str = "chat_template";
const MAX_SOURCE_BYTES: usize = 256 << 10;
const MIN_OUTPUT_BYTES: usize = 4 << 20;
const MAX_RECURSION: usize = 200;
const MAX_ERROR_BYTES: usize = 1 << 10;
// Real templates take 20 to 200 instructions per message, and the shortest message is
// {"role":"","content":""}.
const FUEL: u64 = 300_000;
const FUEL_PER_INPUT_BYTE: u64 = 10;
// One instruction may read megabytes, so fuel alone does not limit the time. Real templates
// take about 5 ms per MiB of text, and at most 100 ms per MiB of the shortest messages.
const TIME: Duration = Duration::from_secs(2);
const TIME_PER_INPUT_BYTE_NS: u64 = 500;
const MAX_BLOCKS: usize = 50_000;
// Dropping and printing 50'000 nested lists recurses. The stack is reserved, not touched.
const STACK_BYTES: usize = 256 << 20;

thread_local! {
    static NOW: Cell<i64> = const { Cell::new(0) };
}

/// The input of one rendering. The texts are JSON.
pub struct Input<'a> {
    pub messages: &'a str,
    pub tools: &'a str,
    pub variables: &'a str,
    pub add_generation_prompt: bool,
    pub now: i64,
}

pub struct Template {
    environment: Environment<'static>,
    // The same, but it prints marks (marks.rs). Made on first use: most templates need none.
    marking: OnceLock<Result<Environment<'static>, String>>,
    source: String,
    pub has_generation: bool,
    special_tokens: String,
}

/// A rendering with its turns, or with the reason why they are unknown.
pub struct WithTurns {
    pub text: Vec<u8>,
    pub turns: Result<Turns, String>,
}

struct Bounded {
    text: Vec<u8>,
    limit: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.text.len() {
            let text = format!("the output is longer than {} bytes", self.limit);
            return Err(io::Error::other(text));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let text = format!("raise_exception: {}", python::str(&message)?);
    Err(Error::new(ErrorKind::InvalidOperation, text))
}

/// datetime.now().strftime(format), at the caller's time.
fn strftime_now(format: &str) -> Result<String, Error> {
    let refuse = |text: &str| Error::new(ErrorKind::InvalidOperation, text.to_string());
    let Ok(format) = std::ffi::CString::new(format) else {
        return Err(refuse("strftime_now: the format contains a NUL byte"));
    };
    if format.is_empty() {
        return Ok(String::new());
    }
    let mut buffer = [0u8; 256];
    // SAFETY: all-zero is a valid tm; the buffer's size is passed with it.
    let written = unsafe {
        let mut calendar: libc::tm = std::mem::zeroed();
        let now: libc::time_t = NOW.get();
        if libc::localtime_r(&now, &mut calendar).is_null() {
            return Err(refuse("strftime_now: the time is out of range"));
        }
        let out = buffer.as_mut_ptr().cast();
        libc::strftime(out, buffer.len(), format.as_ptr(), &calendar)
    };
    if written == 0 {
        return Err(refuse("strftime_now: the result is empty or longer than 255 bytes"));
    }
    Ok(String::from_utf8_lossy(&buffer[..written]).into_owned())
}

// Jinja's trim, join and string go through str(): None becomes "None".
fn trim(value: &Value, characters: Option<&str>) -> Result<String, Error> {
    let text = python::str(value)?;
    Ok(match characters {
        Some(set) => text.trim_matches(|c| set.contains(c)).to_string(),
        None => text.trim().to_string(),
    })
}

fn join(
    value: &Value,
    separator: Option<&Value>,
    attribute: Option<&Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let named: Option<Value> = kwargs.get("attribute")?;
    let named_separator: Option<Value> = kwargs.get("d")?;
    kwargs.assert_all_used()?;
    let separator = match separator.or(named_separator.as_ref()) {
        Some(separator) => python::str(separator)?,
        None => String::new(),
    };
    let attribute = attribute.or(named.as_ref());
    let mut out = String::new();
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(&separator);
        }
        out.push_str(&match attribute {
            Some(name) => python::str(&item.get_item(name)?)?,
            None => python::str(&item)?,
        });
    }
    Ok(out)
}

// In Python a string and a dict have a length and an index, and can be iterated.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::*;
    matches!(value.kind(), Seq | Iterable | Map | String)
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.is_undefined()
}

fn explain(error: Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = text + ": " + &cause.to_string();
        source = cause.source();
    }
    if text.len() > MAX_ERROR_BYTES {
        let end = (0..=MAX_ERROR_BYTES).rev().find(|&i| text.is_char_boundary(i));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
    text
}

fn on_deep_stack<T: Send>(
    budget: Budget,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat_template".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || guarded(budget, work))
            .map_err(|e| Failure::Panic(format!("cannot start a thread to render: {e}")))?;
        // guarded() returns panics as values.
        thread.join().unwrap_or_else(|_| Err(Failure::Panic("the rendering thread failed".into())))
    })
}

impl Template {
    pub fn compile(source: &str, special_tokens: &str) -> Result<Template, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            let text = format!("is {} bytes long, wanted at most {MAX_SOURCE_BYTES}", source.len());
            return Err(Failure::Invalid(text));
        }
        Ok(Template {
            environment: Template::environment(source, false)?,
            marking: OnceLock::new(),
            source: source.into(),
            has_generation: has_generation(source),
            special_tokens: special_tokens.into(),
        })
    }

    fn environment(source: &str, marks: bool) -> Result<Environment<'static>, Failure> {
        let budget = Budget { bytes: 64 << 20, blocks: 4 * MAX_SOURCE_BYTES, time: 2 * TIME };
        on_deep_stack(budget, || {
            let mut environment = Environment::new();
            environment.set_trim_blocks(true);
            environment.set_lstrip_blocks(true);
            environment.set_recursion_limit(MAX_RECURSION);
            environment.set_unknown_method_callback(unknown_method_callback);
            environment.set_formatter(|out, _, value| {
                out.write_str(&python::str(value)?).map_err(Error::from)
            });
            environment.add_filter("tojson", |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
                python::tojson(value, args, kwargs)
            });
            environment.add_filter("string", |value: &Value| python::str(value));
            environment.add_filter("trim", trim);
            environment.add_filter("join", join);
            environment.add_test("sequence", is_sequence);
            environment.add_test("iterable", is_iterable);
            environment.add_function("raise_exception", raise_exception);
            environment.add_function("strftime_now", strftime_now);
            if marks {
                environment.add_function("__nibble_turn", marks::turn);
                environment.add_function("__nibble_end", marks::end);
                environment.add_function("__nibble_generation", marks::generation);
            }
            environment.add_template_owned(NAME, prepare(source, marks)?).map_err(explain)?;
            Ok(environment)
        })
    }

    pub fn render(&self, input: &Input) -> Result<Vec<u8>, Failure> {
        let context = Value::from_serialize(self.context(input)?);
        run(&self.environment, &context, input, 1, "")
    }

    /// Renders twice: like `render`, and with marks.
    pub fn render_turns(&self, input: &Input) -> Result<WithTurns, Failure> {
        let context = self.context(input)?;
        let text = run(&self.environment, &Value::from_serialize(&context), input, 1, "")?;
        let turns = self.find_turns(&context, input, &text);
        Ok(WithTurns { text, turns })
    }

    fn find_turns(&self, context: &Json, input: &Input, text: &[u8]) -> Result<Turns, String> {
        let compile = || Template::environment(&self.source, true).map_err(Failure::into_text);
        let environment = self.marking.get_or_init(compile).as_ref().map_err(String::clone)?;
        let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
        let delimiter = marks::delimiter(text)?;
        let (context, num_messages) = with_numbers(context);
        // Marks need extra instructions and output.
        let marked =
            run(environment, &context, input, 4, &delimiter).map_err(Failure::into_text)?;
        let marked = std::str::from_utf8(&marked).map_err(|e| e.to_string())?;
        marks::read(text, marked, &delimiter, num_messages)
    }

    fn context(&self, input: &Input) -> Result<Json, Failure> {
        let mut all = parse("special_tokens", &self.special_tokens, Json::is_object, "an object")?;
        let extra = parse("variables", input.variables, Json::is_object, "an object")?;
        let messages = parse("messages", input.messages, Json::is_array, "an array")?;
        for (i, message) in messages.as_array().into_iter().flatten().enumerate() {
            if !message.is_object() {
                let text = format!("messages[{i}]: got {}, wanted an object", name_of(message));
                return Err(Failure::Invalid(text));
            }
        }
        all["tools"] = match input.tools {
            "" => Json::Null,
            tools => parse("tools", tools, Json::is_array, "an array")?,
        };
        all["documents"] = Json::Null;
        for (name, value) in extra.as_object().into_iter().flatten() {
            if ["messages", "tools", "add_generation_prompt"].contains(&name.as_str()) {
                let text = format!("variables: {name} must be set in its own field");
                return Err(Failure::Invalid(text));
            }
            all[name] = value.clone();
        }
        all["messages"] = messages;
        all["add_generation_prompt"] = Json::Bool(input.add_generation_prompt);
        Ok(all)
    }
}

/// `scale`: factor of the limits, except that of time. `delimiter`: the beginning of each mark.
fn run(
    environment: &Environment<'static>,
    context: &Value,
    input: &Input,
    scale: usize,
    delimiter: &str,
) -> Result<Vec<u8>, Failure> {
    let input_bytes = input.messages.len() + input.tools.len() + input.variables.len();
    let limit = scale * (MIN_OUTPUT_BYTES + 4 * input_bytes);
    let time = TIME + Duration::from_nanos(TIME_PER_INPUT_BYTE_NS * input_bytes as u64);
    // While a vector grows, its old and its doubled new buffer exist together.
    let budget = Budget { bytes: 3 * limit, blocks: scale * MAX_BLOCKS, time };
    let fuel = scale as u64 * (FUEL + FUEL_PER_INPUT_BYTE * input_bytes as u64);
    on_deep_stack(budget, || {
        NOW.set(input.now);
        marks::start(delimiter);
        let mut environment = environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(NAME).map_err(explain)?;
        let mut out = Bounded { text: Vec::new(), limit };
        template.render_captured_to(context, &mut out).map_err(explain)?;
        Ok(out.text)
    })
}

/// The context with numbered messages, and the number of messages.
fn with_numbers(context: &Json) -> (Value, usize) {
    let fields = context.as_object().into_iter().flatten();
    let mut all: BTreeMap<&str, Value> =
        fields.map(|(name, value)| (name.as_str(), Value::from_serialize(value))).collect();
    let messages = context["messages"].as_array().into_iter().flatten().enumerate();
    let messages: Vec<Value> = messages
        .map(|(index, fields)| Message { index, fields: Value::from_serialize(fields) })
        .map(Value::from_object)
        .collect();
    let num_messages = messages.len();
    all.insert("messages", messages.into());
    (all.into(), num_messages)
}

fn name_of(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

fn parse(
    field: &str,
    text: &str,
    fits: impl Fn(&Json) -> bool,
    wanted: &str,
) -> Result<Json, Failure> {
    let text = if text.is_empty() { "{}" } else { text };
    let json: Json = serde_json::from_str(text).map_err(|e| format!("{field}: not JSON: {e}"))?;
    if !fits(&json) {
        return Err(Failure::Invalid(format!("{field}: got {}, wanted {wanted}", name_of(&json))));
    }
    Ok(json)
}

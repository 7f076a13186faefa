//! Implements text_ffi.h: takes pointers and returns owned bytes. Each function here only
//! converts between C and Rust, and turns panics into errors or defaults; the modules do the work.
#![feature(alloc_error_hook)]
// text_ffi.h states what callers must ensure.
#![allow(clippy::missing_safety_doc)]

mod budget;
mod grammar;
mod lark;
mod marks;
mod python;
mod schema;
mod source;
mod template;
mod tokenizer;
mod trainer;

use budget::{guarded, Budget, Failure};
use grammar::{Compiler, Follower, Grammar, Kind, Tokens};
use marks::Part;
use std::ptr::null_mut;
use template::{Input, Template};
use tokenizer::{DecoderKind, Special, Tokenizer};
use trainer::{peak_bytes, Trainer};

const OK: i32 = 0;
const INVALID: i32 = 1;
const INTERNAL: i32 = 2;

#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let size = bytes.len();
        Bytes { data: Box::into_raw(bytes.into_boxed_slice()).cast(), size }
    }
}

unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, size)
}

unsafe fn text<'a>(data: *const u8, size: usize) -> Result<&'a str, Failure> {
    std::str::from_utf8(slice(data, size)).map_err(|e| Failure::Invalid(format!("not UTF-8: {e}")))
}

unsafe fn answer(out: *mut Bytes, work: impl FnOnce() -> Result<Vec<u8>, Failure>) -> i32 {
    // The modules guard their own work; this catches panics in the code around it.
    let (code, bytes) = match guarded(Budget::UNLIMITED, work) {
        Ok(bytes) => (OK, bytes),
        Err(Failure::Invalid(reason)) => (INVALID, reason.into_bytes()),
        Err(Failure::Panic(reason)) => (INTERNAL, reason.into_bytes()),
    };
    *out = bytes.into();
    code
}

// For functions without an `out`: returns `otherwise` after a panic.
fn quietly<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    guarded(Budget::UNLIMITED, || Ok(work())).unwrap_or(otherwise)
}

#[no_mangle]
pub unsafe extern "C" fn nibble_bytes_free(bytes: Bytes) {
    if !bytes.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.size)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_load(
    json: *const u8,
    size: usize,
    tokenizer: *mut *mut Tokenizer,
    out: *mut Bytes,
) -> i32 {
    *tokenizer = null_mut();
    answer(out, || {
        *tokenizer = Box::into_raw(Box::new(Tokenizer::load(slice(json, size))?));
        Ok(Vec::new())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_with_word_cache(
    tokenizer: *const Tokenizer,
    copy: *mut *mut Tokenizer,
    out: *mut Bytes,
) -> i32 {
    *copy = null_mut();
    answer(out, || {
        *copy = Box::into_raw(Box::new((*tokenizer).with_word_cache()));
        Ok(Vec::new())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        quietly((), || drop(Box::from_raw(tokenizer)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_encode(
    tokenizer: *const Tokenizer,
    data: *const u8,
    size: usize,
    special_tokens: i32,
    offsets: *mut Bytes,
    began_with_added: *mut bool,
    out: *mut Bytes,
) -> i32 {
    // The values of NibbleSpecialTokens (text_ffi.h).
    let special = match special_tokens {
        1 => Special::All,
        2 => Special::Once,
        3 => Special::OnceBefore,
        4 => Special::OnceAfter,
        _ => Special::None,
    };
    let mut places = Vec::new();
    let mut began = false;
    let code = answer(out, || {
        let encoded = (*tokenizer).encode(text(data, size)?, special)?;
        places = encoded.offsets;
        began = encoded.began_with_added;
        Ok(encoded.ids)
    });
    if !offsets.is_null() {
        *offsets = places.into();
    }
    if !began_with_added.is_null() {
        *began_with_added = began;
    }
    code
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_is_local(tokenizer: *const Tokenizer) -> bool {
    quietly(false, || (*tokenizer).is_local())
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_decode(
    tokenizer: *const Tokenizer,
    ids: *const i32,
    count: usize,
    skip_special_tokens: bool,
    out: *mut Bytes,
) -> i32 {
    answer(out, || {
        let decoded = (*tokenizer).decode(slice(ids, count), skip_special_tokens)?;
        Ok(decoded.into_bytes())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_decoder_kind(tokenizer: *const Tokenizer) -> DecoderKind {
    (*tokenizer).kind
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_token_bytes(
    tokenizer: *const Tokenizer,
    id: i32,
    out: *mut Bytes,
) -> i32 {
    answer(out, || Ok((*tokenizer).token_bytes(id)))
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_token_id(
    tokenizer: *const Tokenizer,
    token: *const u8,
    size: usize,
) -> i64 {
    let find = || text(token, size).ok().and_then(|token| (*tokenizer).token_id(token));
    quietly(None, find).map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_token(
    tokenizer: *const Tokenizer,
    id: i32,
    out: *mut Bytes,
) -> i32 {
    answer(out, || {
        let token = (*tokenizer).token(id).ok_or(format!("no token has id {id}"))?;
        Ok(token.into_bytes())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_is_special(tokenizer: *const Tokenizer, id: i32) -> bool {
    quietly(false, || (*tokenizer).is_special(id))
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_vocab_size(tokenizer: *const Tokenizer) -> usize {
    quietly(0, || (*tokenizer).vocab_size())
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_ids(tokenizer: *const Tokenizer, out: *mut Bytes) -> i32 {
    answer(out, || Ok((*tokenizer).ids()))
}

#[no_mangle]
pub unsafe extern "C" fn nibble_tokenizer_added_tokens(
    tokenizer: *const Tokenizer,
    out: *mut Bytes,
) -> i32 {
    answer(out, || Ok((*tokenizer).added_tokens()))
}

#[no_mangle]
pub unsafe extern "C" fn nibble_trainer_new(
    special_tokens: Text,
    vocab_size: usize,
    max_letters: usize,
    trainer: *mut *mut Trainer,
    out: *mut Bytes,
) -> i32 {
    *trainer = null_mut();
    answer(out, || {
        let special_tokens = text(special_tokens.data, special_tokens.size)?;
        let made = Trainer::new(special_tokens, vocab_size, max_letters)?;
        *trainer = Box::into_raw(Box::new(made));
        Ok(Vec::new())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_trainer_free(trainer: *mut Trainer) {
    if !trainer.is_null() {
        quietly((), || drop(Box::from_raw(trainer)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn nibble_trainer_count(
    trainer: *mut Trainer,
    data: Text,
    out: *mut Bytes,
) -> i32 {
    answer(out, || {
        (*trainer).count(text(data.data, data.size)?)?;
        Ok(Vec::new())
    })
}

#[no_mangle]
pub extern "C" fn nibble_trainer_peak_bytes(letters: usize, vocab_size: usize) -> usize {
    peak_bytes(letters, vocab_size)
}

#[no_mangle]
pub unsafe extern "C" fn nibble_trainer_train(trainer: *const Trainer, out: *mut Bytes) -> i32 {
    answer(out, || Ok((*trainer).train()?.into_bytes()))
}

#[repr(C)]
pub struct Text {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct RenderInput {
    messages: Text,
    tools: Text,
    variables: Text,
    add_generation_prompt: bool,
    now_unix_seconds: i64,
}

#[no_mangle]
pub unsafe extern "C" fn nibble_template_compile(
    source: Text,
    special_tokens: Text,
    compiled: *mut *mut Template,
    out: *mut Bytes,
) -> i32 {
    *compiled = null_mut();
    answer(out, || {
        let special_tokens = text(special_tokens.data, special_tokens.size)?;
        let template = Template::compile(text(source.data, source.size)?, special_tokens)?;
        *compiled = Box::into_raw(Box::new(template));
        Ok(Vec::new())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_template_free(compiled: *mut Template) {
    if !compiled.is_null() {
        quietly((), || drop(Box::from_raw(compiled)));
    }
}

unsafe fn input_of<'a>(input: *const RenderInput) -> Result<Input<'a>, Failure> {
    let input = &*input;
    Ok(Input {
        messages: text(input.messages.data, input.messages.size)?,
        tools: text(input.tools.data, input.tools.size)?,
        variables: text(input.variables.data, input.variables.size)?,
        add_generation_prompt: input.add_generation_prompt,
        now: input.now_unix_seconds,
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_template_render(
    compiled: *const Template,
    input: *const RenderInput,
    out: *mut Bytes,
) -> i32 {
    answer(out, || (*compiled).render(&input_of(input)?))
}

#[no_mangle]
pub unsafe extern "C" fn nibble_template_render_turns(
    compiled: *const Template,
    input: *const RenderInput,
    turns: *mut Bytes,
    generation: *mut Bytes,
    unknown: *mut Bytes,
    out: *mut Bytes,
) -> i32 {
    let pairs = |parts: &[Part]| -> Vec<u8> {
        parts
            .iter()
            .flat_map(|part| [part.begin as u64, part.end as u64])
            .flat_map(u64::to_ne_bytes)
            .collect()
    };
    let (mut places, mut blocks, mut why) = (Vec::new(), Vec::new(), Vec::new());
    let code = answer(out, || {
        let rendered = (*compiled).render_turns(&input_of(input)?)?;
        match rendered.turns {
            Ok(found) => (places, blocks) = (pairs(&found.messages), pairs(&found.generation)),
            Err(reason) => why = reason.into_bytes(),
        }
        Ok(rendered.text)
    });
    (*turns, *generation, *unknown) = (places.into(), blocks.into(), why.into());
    code
}

#[no_mangle]
pub unsafe extern "C" fn nibble_template_has_generation(compiled: *const Template) -> bool {
    (*compiled).has_generation
}

#[repr(C)]
pub struct Vocabulary {
    blob: Text,
    ends: *const u32,
    special: *const u8,
    size: usize,
    end_tokens: *const i32,
    num_end_tokens: usize,
}

#[no_mangle]
pub unsafe extern "C" fn nibble_compiler_new(
    tokenizer: *const Tokenizer,
    vocabulary: *const Vocabulary,
    compiler: *mut *mut Compiler,
    out: *mut Bytes,
) -> i32 {
    *compiler = null_mut();
    answer(out, || {
        let input = &*vocabulary;
        let tokens = Tokens {
            blob: slice(input.blob.data, input.blob.size),
            ends: slice(input.ends, input.size),
            special: slice(input.special, input.size),
            end_tokens: slice(input.end_tokens, input.num_end_tokens),
        };
        *compiler = Box::into_raw(Box::new(Compiler::new(tokenizer, &tokens)?));
        Ok(Vec::new())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_compiler_free(compiler: *mut Compiler) {
    if !compiler.is_null() {
        quietly((), || drop(Box::from_raw(compiler)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn nibble_grammar_compile(
    compiler: *const Compiler,
    kind: i32,
    source: Text,
    grammar: *mut *mut Grammar,
    out: *mut Bytes,
) -> i32 {
    *grammar = null_mut();
    // The values of NibbleGrammarKind (text_ffi.h).
    let kind = match kind {
        0 => Kind::JsonSchema,
        1 => Kind::Regex,
        2 => Kind::Choice,
        3 => Kind::Lark,
        _ => Kind::Tools,
    };
    answer(out, || {
        let compiled = (*compiler).compile(kind, text(source.data, source.size)?)?;
        *grammar = Box::into_raw(Box::new(compiled));
        Ok(Vec::new())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_grammar_free(grammar: *mut Grammar) {
    if !grammar.is_null() {
        quietly((), || drop(Box::from_raw(grammar)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn nibble_grammar_bytes(grammar: *const Grammar) -> i64 {
    (*grammar).bytes()
}

#[no_mangle]
pub unsafe extern "C" fn nibble_follower_new(
    grammar: *const Grammar,
    follower: *mut *mut Follower,
    out: *mut Bytes,
) -> i32 {
    *follower = null_mut();
    answer(out, || {
        *follower = Box::into_raw(Box::new((*grammar).follow()?));
        Ok(Vec::new())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_follower_free(follower: *mut Follower) {
    if !follower.is_null() {
        quietly((), || drop(Box::from_raw(follower)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn nibble_follower_allowed(
    follower: *mut Follower,
    allowed: *mut u32,
    num_words: usize,
    out: *mut Bytes,
) -> i32 {
    answer(out, || {
        (*follower).allowed(std::slice::from_raw_parts_mut(allowed, num_words))?;
        Ok(Vec::new())
    })
}

#[no_mangle]
pub unsafe extern "C" fn nibble_follower_accept(
    follower: *mut Follower,
    token: i32,
    out: *mut Bytes,
) -> i32 {
    answer(out, || {
        (*follower).accept(token as u32)?;
        Ok(Vec::new())
    })
}

//! Grammars that the text of an output must match, by the crate `llguidance`. A `Compiler` belongs to one vocabulary;
//! a `Grammar` is compiled once and followed by any number of `Follower`s.

use crate::budget::{guarded, net_bytes, Budget, Failure};
use crate::lark::{prepare_lark, prepare_tools};
use crate::schema::{prepare_schema, with_places, wrong_expression, Blanks};
use crate::tokenizer::{DecoderKind, Special, Tokenizer};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const MAX_CHOICES: usize = 10_000;
// Deeper brackets could exhaust the stack.
const MAX_DEPTH: usize = 100;
// Rules and schemas may refer to each other in chains, and nest in each link, which the compiler follows by recursion. A
// level has at least 2 bytes of the source and takes about 1.6 KiB of stack, so a source takes about 200 MiB at most.
// Only pages that are used take memory.
const COMPILE_STACK: usize = 512 << 20;
// The trie's limit is 1024.
const MAX_TOKEN_BYTES: usize = 1000;
const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

const COMPILE: Budget =
    Budget { bytes: 192 << 20, blocks: usize::MAX, time: Duration::from_secs(3) };
// A mask of a usual schema takes 70 us. The parser's own limits end a costly one after about 5 ms; these limits are for
// what it does not count.
const STEP: Budget =
    Budget { bytes: 64 << 20, blocks: usize::MAX, time: Duration::from_millis(200) };
const STEP_LEXER_FUEL: u64 = 50_000;
const STEP_MAX_ITEMS: usize = 20_000;
const MAX_LEXER_STATES: usize = 20_000; // of a follower, 1 to 2 KiB each
const MAX_GRAMMAR_BYTES: i64 = 32 << 20;
const MAX_FOLLOWER_BYTES: i64 = 64 << 20;

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    JsonSchema,
    Regex,
    Choice,
    Lark,
    Tools,
}

struct Vocabulary {
    tokenizer: *const Tokenizer,
    trie: TokTrie,
    canonical: bool,
}

// SAFETY: a Tokenizer is immutable, and text_ffi.h says that it outlives the compiler and its grammars.
unsafe impl Send for Vocabulary {}
unsafe impl Sync for Vocabulary {}

impl Vocabulary {
    fn encode(&self, text: &str) -> Vec<TokenId> {
        // SAFETY: as above.
        let encoded = unsafe { &*self.tokenizer }.encode_here(text, Special::None);
        let id_of = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let ids =
            encoded.map(|encoded| encoded.ids.chunks_exact(4).map(id_of).collect::<Vec<TokenId>>());
        match ids {
            // The tokens must be the text itself, or the parser would refuse the token that it forces.
            Ok(ids) if self.trie.decode_raw(&ids) == text.as_bytes() => ids,
            _ => self.trie.greedy_tokenize(text.as_bytes()),
        }
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.encode(text))
    }

    // Only byte-level tokens spell a text alone as inside a longer text; others get a blank before it.
    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}

pub struct Compiler {
    factory: ParserFactory,
    // For grammars of users in Lark: with the other factory, a mask may take exponential time in the number of terminals
    // that refer to each other below a complement, without an allocation that would end it.
    plain_factory: ParserFactory,
}

pub struct Grammar {
    fresh: Matcher,
    bytes: i64,
}

pub struct Follower {
    matcher: Matcher,
    bytes: i64,
}

/// A vocabulary as NibbleVocabulary (text_ffi.h) describes it.
pub struct Tokens<'a> {
    pub blob: &'a [u8],
    pub ends: &'a [u32],
    pub special: &'a [u8],
    pub end_tokens: &'a [i32],
}

impl Compiler {
    /// `tokenizer` must outlive the compiler and its grammars.
    pub fn new(tokenizer: *const Tokenizer, tokens: &Tokens) -> Result<Compiler, Failure> {
        // A vocabulary of 256 K tokens takes about 60 MiB and a second.
        let budget = Budget { bytes: 1 << 30, blocks: usize::MAX, time: Duration::from_secs(60) };
        guarded(budget, || {
            let mut words = Vec::with_capacity(tokens.ends.len());
            let mut begin = 0;
            for (id, &end) in tokens.ends.iter().enumerate() {
                let bytes = &tokens.blob[begin..end as usize];
                begin = end as usize;
                let mut word = Vec::new();
                if bytes.len() <= MAX_TOKEN_BYTES {
                    if tokens.special[id] != 0 && !bytes.is_empty() {
                        word.push(SPECIAL);
                    }
                    word.extend_from_slice(bytes);
                }
                words.push(word);
            }
            let in_range = |&id: &i32| (id as usize) < words.len();
            let ends: Vec<TokenId> =
                tokens.end_tokens.iter().copied().filter(in_range).map(|id| id as u32).collect();
            if ends.is_empty() {
                return Err(Failure::Invalid("the model has no end token".to_string()));
            }
            // End tokens match no text, even if the tokenizer does not call them special.
            for &id in &ends {
                let word = &mut words[id as usize];
                if word.first() != Some(&SPECIAL) {
                    word.insert(0, SPECIAL);
                }
            }
            let info = TokRxInfo::new(words.len() as u32, ends[0]);
            let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
            // SAFETY: see `new`.
            let canonical = unsafe { (*tokenizer).kind } == DecoderKind::Bytes;
            let env: TokEnv = Arc::new(Vocabulary { tokenizer, trie, canonical });
            let factory = |slices: &[String]| {
                let made = ParserFactory::new(&env, InferenceCapabilities::default(), slices);
                let mut factory = made.map_err(|e| Failure::Invalid(e.to_string()))?;
                factory.quiet();
                let limits = factory.limits_mut();
                limits.step_lexer_fuel = STEP_LEXER_FUEL;
                limits.step_max_items = STEP_MAX_ITEMS;
                limits.max_lexer_states = MAX_LEXER_STATES;
                limits.verbose_errors = false;
                Ok::<ParserFactory, Failure>(factory)
            };
            Ok(Compiler {
                factory: factory(&SlicedBiasComputer::general_slices())?,
                plain_factory: factory(&[])?,
            })
        })
    }

    /// `source`: at most 256 KiB.
    pub fn compile(&self, kind: Kind, source: &str) -> Result<Grammar, Failure> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("grammar".to_string())
                .stack_size(COMPILE_STACK)
                .spawn_scoped(scope, || self.compile_here(kind, source));
            match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| {
                    Err(Failure::Panic("the thread that compiled the grammar panicked".to_string()))
                }),
                Err(error) => Err(Failure::Panic(format!("cannot start a thread: {error}"))),
            }
        })
    }

    fn compile_here(&self, kind: Kind, source: &str) -> Result<Grammar, Failure> {
        let fresh = guarded(COMPILE, || {
            let grammar = top_level(kind, source)?;
            let located = |error: &anyhow::Error| match (kind, serde_json::from_str(source)) {
                (Kind::JsonSchema, Ok(schema)) => {
                    Failure::Invalid(with_places(&plain_text(error), &schema))
                }
                _ => plain(error),
            };
            let factory = if kind == Kind::Lark { &self.plain_factory } else { &self.factory };
            let parser = factory.create_parser(grammar).map_err(|e| located(&e))?;
            let mut matcher = Matcher::new(Ok(parser));
            if let Some(error) = matcher.get_error() {
                return Err(Failure::Invalid(error));
            }
            let mut first = matcher.clone();
            first.compute_mask_or_eos().map_err(|e| plain(&e))?;
            check_complete(&mut first).map_err(|_| "no text matches".to_string())?;
            if let Some(warning) = matcher.grammar_warnings().into_iter().next() {
                return Err(Failure::Invalid(warning));
            }
            Ok(matcher)
        })?;
        let bytes = net_bytes(COMPILE);
        if bytes > MAX_GRAMMAR_BYTES {
            let text = format!("needs {bytes} bytes, wanted at most {MAX_GRAMMAR_BYTES}");
            return Err(Failure::Invalid(text));
        }
        Ok(Grammar { fresh, bytes })
    }
}

/// A grammar may come to a point that no text continues, although it is not complete.
fn check_complete(matcher: &mut Matcher) -> anyhow::Result<()> {
    let dead = matcher.is_stopped() && !matcher.is_accepting()?;
    anyhow::ensure!(!dead, "no token continues the text, which is not complete");
    Ok(())
}

/// Without the parser's state and backtraces, and in the words of this API.
fn plain(error: &anyhow::Error) -> Failure {
    let text = plain_text(error);
    if text.starts_with("panic: ") {
        Failure::Panic(text)
    } else {
        Failure::Invalid(text)
    }
}

fn plain_text(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let text = text.split("\n<").next().unwrap_or_default().trim();
    if text == "NoExtensionBias" {
        return "no token continues the text, which is not complete".to_string();
    }
    if text.contains("Regex is empty") {
        return "no text matches all conditions on a text".to_string();
    }
    if text.contains("regex parse error") {
        return wrong_expression(text);
    }
    text.to_string()
}

/// Brackets also count inside quoted text; 100 levels are far more than real grammars have.
fn check_depth(source: &str) -> Result<(), Failure> {
    let mut depth = 0usize;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(Failure::Invalid(format!("has brackets more than {MAX_DEPTH} deep")));
        }
    }
    Ok(())
}

fn top_level(kind: Kind, source: &str) -> Result<TopLevelGrammar, Failure> {
    match kind {
        Kind::JsonSchema => {
            let schema: Value =
                serde_json::from_str(source).map_err(|e| format!("is not JSON: {e}"))?;
            Ok(TopLevelGrammar::from_json_schema(prepare_schema(schema, Blanks::None)?))
        }
        Kind::Regex => {
            check_depth(source)?;
            regex_syntax::parse(source).map_err(|e| wrong_expression(&e.to_string()))?;
            Ok(TopLevelGrammar::from_regex(source))
        }
        Kind::Choice => {
            let choices: Vec<String> =
                serde_json::from_str(source).map_err(|e| format!("is not a list of texts: {e}"))?;
            if choices.is_empty() || choices.len() > MAX_CHOICES {
                let text = format!("has {} texts, wanted 1 to {MAX_CHOICES}", choices.len());
                return Err(Failure::Invalid(text));
            }
            if choices.iter().any(String::is_empty) {
                return Err(Failure::Invalid("has an empty text".to_string()));
            }
            let escaped: Vec<String> =
                choices.iter().map(|text| regex_syntax::escape(text)).collect();
            Ok(TopLevelGrammar::from_regex(&escaped.join("|")))
        }
        Kind::Lark => {
            check_depth(source)?;
            if source.trim().is_empty() {
                return Err(Failure::Invalid("is empty".to_string()));
            }
            Ok(from_lark(prepare_lark(source)?))
        }
        Kind::Tools => Ok(from_lark(prepare_tools(source)?)),
    }
}

impl Grammar {
    /// Memory of the grammar.
    pub fn bytes(&self) -> i64 {
        self.bytes
    }

    /// A follower has a lexer of its own, so the failure of one does not reach another, and its states go with it.
    pub fn follow(&self) -> Result<Follower, Failure> {
        let matcher = guarded(STEP, || Ok(self.fresh.deep_clone()))?;
        Ok(Follower { matcher, bytes: net_bytes(STEP) })
    }
}

impl Follower {
    fn step<T>(
        &mut self,
        work: impl FnOnce(&mut Matcher) -> anyhow::Result<T>,
    ) -> Result<T, Failure> {
        let done = guarded(STEP, || work(&mut self.matcher).map_err(|e| plain(&e)));
        self.bytes += net_bytes(STEP);
        if self.bytes > MAX_FOLLOWER_BYTES {
            let text = format!("needs more than {MAX_FOLLOWER_BYTES} bytes for this text");
            return Err(Failure::Invalid(text));
        }
        done
    }

    /// Sets bit i of `allowed` if token i may be next. When the text is complete, only the end tokens may.
    pub fn allowed(&mut self, allowed: &mut [u32]) -> Result<(), Failure> {
        self.step(|matcher| {
            let mask: SimpleVob = matcher.compute_mask_or_eos()?;
            check_complete(matcher)?;
            let words = mask.as_slice();
            let count = words.len().min(allowed.len());
            allowed[..count].copy_from_slice(&words[..count]);
            allowed[count..].fill(0);
            Ok(())
        })
    }

    pub fn accept(&mut self, token: TokenId) -> Result<(), Failure> {
        if self.matcher.is_stopped() {
            return Ok(()); // the text is complete: this is an end token
        }
        self.step(|matcher| matcher.consume_token(token))
    }
}

fn from_lark(source: String) -> TopLevelGrammar {
    TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(source))
}

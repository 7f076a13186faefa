//! Follows a tokenizer.json as written, except for truncation and padding: as in
//! transformers, those are the caller's choice.

use crate::budget::{guarded, Budget, Failure};
use std::ops::Range;
use std::time::Duration;
use tokenizers::processors::sequence::Sequence;
use tokenizers::{
    Decoder, DecoderWrapper, ModelWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    Tokenizer as HfTokenizer,
};

const MAX_JSON_BYTES: usize = 64 << 20;
// WordPiece takes time cubic in the length of a word. Real tokenizers allow 100 characters.
const MAX_WORD_PIECE_CHARS: usize = 1000;
// A word of 255 letters takes 8.5 KiB: 32 bytes per letter, and the letters. kWordCacheBytes
// (data/token_writer.h) is the size of this many such words.
const CACHED_WORDS: usize = 10_000;
// With 0.9998, BPE tries each merge of a text thousands of times.
const MAX_DROPOUT: f32 = 0.9;

pub struct Tokenizer {
    inner: HfTokenizer,
    byte_fallback: bool,
    pub kind: DecoderKind,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub enum DecoderKind {
    Bytes = 0,
    Runs = 1,
    Whole = 2,
}

fn budget(input_bytes: usize) -> Budget {
    // A loaded vocabulary takes about 15 times its file, an encoded text with its
    // alignments about 100 times its bytes. Real tokenizers take about 1 s per MiB; others
    // take time quadratic in the length of a text, or copy a long prefix at each letter.
    let time = Duration::from_secs(2) + Duration::from_micros(8 * input_bytes as u64);
    Budget { bytes: (64 << 20) + 256 * input_bytes, blocks: usize::MAX, time }
}

fn check_cost(model: &ModelWrapper) -> Result<(), Failure> {
    let text = match model {
        ModelWrapper::WordPiece(model) if model.max_input_chars_per_word > MAX_WORD_PIECE_CHARS => {
            let got = model.max_input_chars_per_word;
            format!(
                "model.max_input_chars_per_word: got {got}, wanted at most {MAX_WORD_PIECE_CHARS}"
            )
        }
        ModelWrapper::BPE(model) if model.dropout.is_some_and(|got| got > MAX_DROPOUT) => {
            let got = model.dropout.unwrap_or_default();
            format!("model.dropout: got {got}, wanted at most {MAX_DROPOUT}")
        }
        _ => return Ok(()),
    };
    Err(Failure::Invalid(text))
}

/// Whether the decoder replaces one character everywhere. Applied to the pieces of a run
/// of <0xNN>, it gives the same result as applied to the whole run.
fn replaces_one_character(part: &DecoderWrapper) -> bool {
    let written = serde_json::to_value(part).unwrap_or_default();
    written["pattern"]["String"].as_str().is_some_and(|pattern| pattern.chars().count() == 1)
}

fn kind_of(decoder: Option<&DecoderWrapper>) -> DecoderKind {
    let parts = match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => return DecoderKind::Bytes,
        Some(DecoderWrapper::Metaspace(_)) | None => return DecoderKind::Runs,
        Some(DecoderWrapper::Sequence(sequence)) => sequence.get_decoders(),
        Some(other) => std::slice::from_ref(other),
    };
    if let [DecoderWrapper::ByteLevel(_)] = parts {
        return DecoderKind::Bytes;
    }
    let runs = parts.iter().any(|part| matches!(part, DecoderWrapper::ByteFallback(_)));
    let mut fused = false;
    for part in parts {
        let stable = match part {
            DecoderWrapper::Fuse(_) => {
                fused = true;
                true
            }
            // These work on single tokens (a run of bytes becomes one only when it has
            // ended) or, after Fuse, at the start of the text.
            DecoderWrapper::Strip(strip) if fused => strip.stop == 0,
            DecoderWrapper::Strip(_) => !runs,
            DecoderWrapper::Replace(_) => !fused && (!runs || replaces_one_character(part)),
            DecoderWrapper::ByteFallback(_) => !fused,
            _ => false,
        };
        if !stable {
            return DecoderKind::Whole;
        }
    }
    DecoderKind::Runs
}

/// The byte that a character of the byte-level alphabet stands for (GPT-2,
/// encoder.py bytes_to_unicode): printable Latin-1 stands for itself, 256 + i for the
/// i-th other byte.
fn alphabet_byte(c: char) -> Option<u8> {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = c as u32;
    if code < 256 {
        return printable(code).then_some(code as u8);
    }
    let index = usize::try_from(code - 256).ok()?;
    (0..=255u8).filter(|&b| !printable(b.into())).nth(index)
}

fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The same post-processor without trim_offsets, which removes blanks from a token's
/// offsets: a token of only blanks would stand for no text.
fn keeping_blanks(part: &PostProcessorWrapper) -> PostProcessorWrapper {
    match part {
        PostProcessorWrapper::ByteLevel(inner) => inner.trim_offsets(false).into(),
        PostProcessorWrapper::Roberta(inner) => inner.clone().trim_offsets(false).into(),
        PostProcessorWrapper::Sequence(inner) => {
            Sequence::new(inner.as_ref().iter().map(keeping_blanks).collect()).into()
        }
        other => other.clone(),
    }
}

/// Whether each cut depends only on the text near it, not on a count from the start of
/// the text or on state that is carried through the text.
fn cuts_locally(part: &PreTokenizerWrapper) -> bool {
    match part {
        PreTokenizerWrapper::Sequence(parts) => parts.as_ref().iter().all(cuts_locally),
        PreTokenizerWrapper::FixedLength(_) | PreTokenizerWrapper::UnicodeScripts(_) => false,
        _ => true,
    }
}

/// The special tokens that the tokenizer puts around a text.
#[derive(Clone, Copy, PartialEq)]
pub enum Special {
    None,
    /// As the tokenizer specifies, like transformers.
    All,
    /// Without those that the text itself begins or ends with.
    Once,
    /// Like Once, but only before the text, which is the first part of a longer one.
    OnceBefore,
    /// Like Once, but only after the text, which is the last part of a longer one.
    OnceAfter,
}

/// Only byte pair encoding has a cache that outlives its tokenizer.
fn set_word_cache(tokenizer: &mut HfTokenizer, words: usize) {
    if let ModelWrapper::BPE(model) = tokenizer.get_model() {
        let mut model = model.clone(); // the crate lends its model only for reading
        model.resize_cache(words);
        tokenizer.with_model(model);
    }
}

pub struct Encoded {
    pub ids: Vec<u8>,
    pub offsets: Vec<u8>,
    pub began_with_added: bool,
}

// Maximum of repeated special tokens on one side. Real tokenizers add one or two.
const MAX_REPEATED: usize = 8;

struct LeftOut {
    before: Range<usize>,
    after: Range<usize>,
    began_with_added: bool,
}

/// Finds the added tokens to omit: those that repeat the text beside them (the first of
/// two `<s>`), and those on a side where no special tokens are wanted.
fn find_left_out(ids: &[u32], added: &[u32], special: Special) -> LeftOut {
    let is_added = |mark: &&u32| **mark == 1;
    let begin = added.iter().take_while(is_added).count();
    let end = ids.len() - added[begin..].iter().rev().take_while(is_added).count();
    let text = &ids[begin..end];
    let most = |count: usize, fits: &dyn Fn(usize) -> bool| {
        (0..=count.min(MAX_REPEATED)).rev().find(|&n| fits(n)).unwrap_or(0)
    };
    let before = most(begin, &|n| text.starts_with(&ids[begin - n..begin]));
    let after = most(ids.len() - end, &|n| text.ends_with(&ids[end..end + n]));
    let mut left_out = LeftOut {
        before: begin - before..begin,
        after: end..end + after,
        began_with_added: before > 0,
    };
    match special {
        Special::OnceBefore => left_out.after = end..ids.len(),
        Special::OnceAfter => {
            left_out = LeftOut { before: 0..begin, began_with_added: false, ..left_out }
        }
        _ => {}
    }
    left_out
}

fn end_run(run: &mut Vec<u8>, tokens: &mut Vec<String>) {
    if !run.is_empty() {
        tokens.push(String::from_utf8_lossy(run).into_owned());
        run.clear();
    }
}

impl Tokenizer {
    pub fn load(json: &[u8]) -> Result<Tokenizer, Failure> {
        if json.len() > MAX_JSON_BYTES {
            let text = format!("is {} bytes long, wanted at most {MAX_JSON_BYTES}", json.len());
            return Err(Failure::Invalid(text));
        }
        guarded(budget(json.len()), || {
            let mut inner = HfTokenizer::from_bytes(json).map_err(|e| e.to_string())?;
            check_cost(inner.get_model())?;
            // Every thread that encodes would cache words until it ends, even after the
            // tokenizer is dropped.
            set_word_cache(&mut inner, 0);
            inner.with_truncation(None).map_err(|e| e.to_string())?;
            inner.with_padding(None);
            if let Some(part) = inner.get_post_processor() {
                let part = keeping_blanks(part);
                inner.with_post_processor(Some(part));
            }
            let kind = kind_of(inner.get_decoder());
            let decoders = match inner.get_decoder() {
                Some(DecoderWrapper::Sequence(sequence)) => sequence.get_decoders(),
                Some(other) => std::slice::from_ref(other),
                None => &[],
            };
            let byte_fallback =
                decoders.iter().any(|part| matches!(part, DecoderWrapper::ByteFallback(_)));
            Ok(Tokenizer { inner, byte_fallback, kind })
        })
        // A panic in one of the parser's own unwraps is the input's fault.
        .map_err(|failure| match failure {
            Failure::Panic(text) | Failure::Invalid(text) => Failure::Invalid(text),
        })
    }

    /// A copy that caches words in every thread that encodes with it, until the thread
    /// ends. Encoding text of a small vocabulary then takes half the time.
    pub fn with_word_cache(&self) -> Tokenizer {
        let mut inner = self.inner.clone();
        set_word_cache(&mut inner, CACHED_WORDS);
        Tokenizer { inner, byte_fallback: self.byte_fallback, kind: self.kind }
    }

    pub fn encode(&self, text: &str, special: Special) -> Result<Encoded, Failure> {
        guarded(budget(text.len()), || self.encode_here(text, special))
    }

    /// For callers that have a budget of their own, because budgets do not nest.
    pub fn encode_here(&self, text: &str, special: Special) -> Result<Encoded, Failure> {
        // Offsets are 32 bits wide.
        if u32::try_from(text.len()).is_err() {
            return Err(Failure::Invalid(format!("is {} bytes long", text.len())));
        }
        let added = special != Special::None;
        let encoding = self.inner.encode(text, added).map_err(|e| e.to_string())?;
        // The crate's ids have 32 bits; ours have 31, as in all code that computes with them.
        if let Some(id) = encoding.get_ids().iter().find(|&&id| id > i32::MAX as u32) {
            return Err(Failure::Invalid(format!(
                "has a token with the id {id}, wanted at most {}",
                i32::MAX
            )));
        }
        let (all, offsets) = (encoding.get_ids(), encoding.get_offsets());
        let end = all.len()..all.len();
        let mut left_out = LeftOut { before: 0..0, after: end, began_with_added: false };
        if added && special != Special::All {
            left_out = find_left_out(all, encoding.get_special_tokens_mask(), special);
        }
        let keeps = |i: &usize| !left_out.before.contains(i) && !left_out.after.contains(i);
        let kept: Vec<usize> = (0..all.len()).filter(keeps).collect();
        let places = kept.iter().flat_map(|&i| [offsets[i].0 as u32, offsets[i].1 as u32]);
        Ok(Encoded {
            ids: kept.iter().flat_map(|&i| all[i].to_ne_bytes()).collect(),
            offsets: places.flat_map(u32::to_ne_bytes).collect(),
            began_with_added: left_out.began_with_added,
        })
    }

    /// Whether two overlapping texts can be joined where their tokens are the same. Byte
    /// pair encoding merges adjacent parts, independent of the text further away.
    pub fn is_local(&self) -> bool {
        let merges = match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.dropout.unwrap_or(0.0) == 0.0,
            _ => false,
        };
        merges && self.inner.get_pre_tokenizer().is_none_or(cuts_locally)
    }

    /// Decodes like `tokenizers`, with one exception: in a run of <0xNN> that is not all
    /// UTF-8, it keeps the whole characters, while ByteFallback drops the run. So a text
    /// that is cut inside a character keeps the characters before the cut.
    pub fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String, Failure> {
        if let Some(id) = ids.iter().find(|&&id| id < 0) {
            return Err(Failure::Invalid(format!("got the id {id}, wanted 0 or more")));
        }
        // The budget is that of a text with 64 bytes for each id.
        guarded(budget(64 * ids.len()), || {
            let mut tokens: Vec<String> = Vec::with_capacity(ids.len());
            let mut run: Vec<u8> = Vec::new();
            for &id in ids {
                let Some(token) = self.token(id) else { continue };
                if skip_special && self.inner.get_added_vocabulary().is_special_token(&token) {
                    continue;
                }
                if let (true, Some(byte)) = (self.byte_fallback, fallback_byte(&token)) {
                    run.push(byte);
                    continue;
                }
                end_run(&mut run, &mut tokens);
                tokens.push(token);
            }
            end_run(&mut run, &mut tokens);
            match self.inner.get_decoder() {
                Some(decoder) => Ok(decoder.decode(tokens).map_err(|e| e.to_string())?),
                None => Ok(tokens.join(" ")),
            }
        })
    }

    /// None if no token has this id; such ids decode to nothing.
    pub fn token(&self, id: i32) -> Option<String> {
        self.inner.id_to_token(u32::try_from(id).ok()?)
    }

    /// Under Bytes: the bytes that the token adds. Under Runs: the byte of a <0xNN> token.
    pub fn token_bytes(&self, id: i32) -> Vec<u8> {
        let token = self.token(id).unwrap_or_default();
        if self.kind != DecoderKind::Bytes {
            let byte = fallback_byte(&token).filter(|_| self.byte_fallback);
            return byte.into_iter().collect();
        }
        // A token with any other character stands for its own UTF-8.
        let bytes: Option<Vec<u8>> = token.chars().map(alphabet_byte).collect();
        bytes.unwrap_or_else(|| token.into_bytes())
    }

    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub fn is_special(&self, id: i32) -> bool {
        let added = self.inner.get_added_vocabulary();
        self.token(id).is_some_and(|token| added.is_special_token(&token))
    }

    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Ids of all tokens, ascending; an id above i32::MAX becomes i32::MAX.
    pub fn ids(&self) -> Vec<u8> {
        let known = |id: u32| id.min(i32::MAX as u32);
        let mut ids: Vec<u32> = self.inner.get_vocab(true).into_values().map(known).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    pub fn added_tokens(&self) -> Vec<u8> {
        let mut ids: Vec<u32> = self.inner.get_added_tokens_decoder().into_keys().collect();
        ids.sort_unstable();
        ids.into_iter().flat_map(u32::to_ne_bytes).collect()
    }
}

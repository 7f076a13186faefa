//! Trains a byte-level BPE tokenizer (GPT-2's pre-tokenizer and alphabet) on texts that
//! arrive one by one. Keeps only the different words and their counts.

use crate::budget::{guarded, Budget, Failure};
use ahash::AHashMap;
use compact_str::CompactString;
use std::time::Duration;
use tokenizers::models::bpe::{BpeTrainer, BPE};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::utils::parallelism::set_parallelism;
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Tokenizer as HfTokenizer,
};

// Memory of `train` for each letter of the different words: a symbol of a word (32 bytes, in
// a vector that may have twice the room), and its places in the sets of the pairs that it
// was part of.
const BYTES_PER_LETTER: usize = 192;
// Memory of `count` for each letter. A word takes up to 75 bytes; most have three letters or more, and the
// few different words of one or two letters fit in BYTES_AT_LEAST.
const COUNT_BYTES_PER_LETTER: usize = 32;
// A token of the vocabulary, its merge, and the JSON that is made of both.
const BYTES_PER_TOKEN: usize = 1 << 10;
// Merging a word takes time quadratic in its length. Real words are shorter.
const MAX_WORD_LETTERS: usize = 1000;
// Memory of `train` that depends neither on letters nor on tokens.
const BYTES_AT_LEAST: usize = 16 << 20;

pub struct Trainer {
    special_tokens: Vec<AddedToken>,
    vocab_size: usize,
    splitter: ByteLevel,
    counts: AHashMap<CompactString, u64>,
    letters: usize, // of the different words
    max_letters: usize,
}

/// Peak memory of `train`, beside the counts.
fn train_bytes(letters: usize, vocab_size: usize) -> usize {
    BYTES_AT_LEAST + BYTES_PER_LETTER * letters + BYTES_PER_TOKEN * vocab_size
}

/// Peak memory of a trainer with this many letters of different words.
pub fn peak_bytes(letters: usize, vocab_size: usize) -> usize {
    train_bytes(letters, vocab_size) + COUNT_BYTES_PER_LETTER * letters
}

impl Trainer {
    /// special_tokens: a JSON list of texts, which get the ids from 0.
    pub fn new(
        special_tokens: &str,
        vocab_size: usize,
        max_letters: usize,
    ) -> Result<Trainer, Failure> {
        let names: Vec<String> =
            serde_json::from_str(special_tokens).map_err(|e| format!("special tokens: {e}"))?;
        let least = names.len() + ByteLevel::alphabet().len();
        if vocab_size < least {
            return Err(Failure::Invalid(format!(
                "vocabulary size: got {vocab_size}, wanted at least {least}, the bytes and the \
                 special tokens"
            )));
        }
        // The process has a thread pool of its own, and a budget follows one thread.
        set_parallelism(false);
        Ok(Trainer {
            special_tokens: names.iter().map(|name| AddedToken::from(name, true)).collect(),
            vocab_size,
            splitter: ByteLevel::new(false, false, true),
            counts: AHashMap::new(),
            letters: 0,
            max_letters,
        })
    }

    /// Counts the words of a text, without those of more than MAX_WORD_LETTERS, and without
    /// words that are new when max_letters is reached: those are rare.
    pub fn count(&mut self, text: &str) -> Result<(), Failure> {
        let mut split = PreTokenizedString::from(text);
        self.splitter.pre_tokenize(&mut split).map_err(|e| e.to_string())?;
        for (word, _, _) in split.get_splits(OffsetReferential::Original, OffsetType::None) {
            if let Some(count) = self.counts.get_mut(word) {
                *count += 1;
                continue;
            }
            let letters = word.chars().count();
            if letters <= MAX_WORD_LETTERS && letters <= self.max_letters - self.letters {
                self.letters += letters;
                self.counts.insert(word.into(), 1);
            }
        }
        Ok(())
    }

    /// Makes the text of a tokenizer.json. The result depends only on the counts.
    pub fn train(&self) -> Result<String, Failure> {
        let bytes = train_bytes(self.letters, self.vocab_size);
        let budget = Budget { bytes, blocks: usize::MAX, time: Duration::MAX };
        guarded(budget, || {
            let trainer = BpeTrainer::builder()
                .vocab_size(self.vocab_size)
                .special_tokens(self.special_tokens.clone())
                .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
                .show_progress(false)
                .build();
            let mut model = BPE::default();
            trainer.do_train(&self.counts, &mut model).map_err(|e| e.to_string())?;
            let mut made = HfTokenizer::new(model);
            made.with_pre_tokenizer(Some(self.splitter));
            made.with_decoder(Some(ByteLevel::default()));
            made.add_special_tokens(self.special_tokens.iter().cloned())
                .map_err(|e| e.to_string())?;
            Ok(made.to_string(false).map_err(|e| e.to_string())?)
        })
    }
}

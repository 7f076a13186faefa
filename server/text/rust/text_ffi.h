// The C interface of the Rust crate in this folder: Hugging Face `tokenizers`, `minijinja` and
// `llguidance`. Only server/text/*.cc includes it; no exception or panic leaves a function.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct NibbleTokenizer NibbleTokenizer;
typedef struct NibbleTemplate NibbleTemplate;
typedef struct NibbleTrainer NibbleTrainer;
typedef struct NibbleCompiler NibbleCompiler;
typedef struct NibbleGrammar NibbleGrammar;
typedef struct NibbleFollower NibbleFollower;

// Bytes that Rust allocated. The receiver must call nibble_bytes_free.
typedef struct NibbleBytes {
  uint8_t* data;
  size_t size;
} NibbleBytes;

// NOLINTBEGIN(readability-identifier-naming): names of C, where constants share one scope.
typedef enum NibbleTextCode {
  NIBBLE_TEXT_OK = 0,
  NIBBLE_TEXT_INVALID = 1,   // the input is at fault: `out` holds the reason
  NIBBLE_TEXT_INTERNAL = 2,  // a panic inside: `out` holds its message
} NibbleTextCode;

// How decoded text grows. This decides where a stream may be cut.
typedef enum NibbleDecoderKind {
  NIBBLE_DECODER_BYTES = 0,  // byte-level: the tokens' bytes, concatenated
  NIBBLE_DECODER_RUNS = 1,   // SentencePiece: token by token, except <0xNN>
  NIBBLE_DECODER_WHOLE = 2,  // only the whole text is final
} NibbleDecoderKind;

// The special tokens that a tokenizer puts around a text.
typedef enum NibbleSpecialTokens {
  NIBBLE_SPECIAL_NONE = 0,
  NIBBLE_SPECIAL_ALL = 1,          // as the tokenizer specifies
  NIBBLE_SPECIAL_ONCE = 2,         // without those that the text itself begins or ends with
  NIBBLE_SPECIAL_ONCE_BEFORE = 3,  // of these, those before the text
  NIBBLE_SPECIAL_ONCE_AFTER = 4,   // of these, those after the text
} NibbleSpecialTokens;
// NOLINTEND(readability-identifier-naming)

void nibble_bytes_free(NibbleBytes bytes);

// Every function with `out` sets it on success and on failure; the text of a
// failure is UTF-8. A pointer may be null only if its size is 0.
NibbleTextCode nibble_tokenizer_load(const uint8_t* json, size_t size, NibbleTokenizer** tokenizer, NibbleBytes* out);
// A copy that caches words in every thread that encodes with it, until the
// thread ends.
NibbleTextCode nibble_tokenizer_with_word_cache(const NibbleTokenizer* tokenizer, NibbleTokenizer** copy,
                                                NibbleBytes* out);
void nibble_tokenizer_free(NibbleTokenizer* tokenizer);

// out: int32 ids. offsets (may be null): for each id two uint32, its first byte
// in the text and the byte after its last. began_with_added (may be null): under
// NIBBLE_SPECIAL_ONCE and _ONCE_BEFORE, whether a token before the text was omitted.
NibbleTextCode nibble_tokenizer_encode(const NibbleTokenizer* tokenizer, const uint8_t* text, size_t size,
                                       NibbleSpecialTokens special_tokens, NibbleBytes* offsets, bool* began_with_added,
                                       NibbleBytes* out);
// Whether two overlapping texts can be joined where their tokens are the same.
bool nibble_tokenizer_is_local(const NibbleTokenizer* tokenizer);
NibbleTextCode nibble_tokenizer_decode(const NibbleTokenizer* tokenizer, const int32_t* ids, size_t count,
                                       bool skip_special_tokens, NibbleBytes* out);
NibbleDecoderKind nibble_tokenizer_decoder_kind(const NibbleTokenizer* tokenizer);
// out: under NIBBLE_DECODER_BYTES the bytes that the token adds, which may be part of
// a character; under NIBBLE_DECODER_RUNS the byte of a <0xNN> token, otherwise nothing.
NibbleTextCode nibble_tokenizer_token_bytes(const NibbleTokenizer* tokenizer, int32_t id, NibbleBytes* out);

int64_t nibble_tokenizer_token_id(const NibbleTokenizer* tokenizer, const uint8_t* token, size_t size);  // or -1
// The token as tokenizer.json spells it; INVALID if there is no such token.
NibbleTextCode nibble_tokenizer_token(const NibbleTokenizer* tokenizer, int32_t id, NibbleBytes* out);
bool nibble_tokenizer_is_special(const NibbleTokenizer* tokenizer, int32_t id);
size_t nibble_tokenizer_vocab_size(const NibbleTokenizer* tokenizer);
// int32 ids of all tokens, including added ones, ascending, without duplicates. An id
// above INT32_MAX becomes INT32_MAX.
NibbleTextCode nibble_tokenizer_ids(const NibbleTokenizer* tokenizer, NibbleBytes* out);
// int32 ids of the added tokens, ascending.
NibbleTextCode nibble_tokenizer_added_tokens(const NibbleTokenizer* tokenizer, NibbleBytes* out);

typedef struct NibbleText {
  const uint8_t* data;
  size_t size;
} NibbleText;

// Trains a byte-level BPE tokenizer. special_tokens: a JSON list of texts, which get the
// ids from 0; vocab_size: the largest number of tokens, special ones included; max_letters:
// of all different words together.
NibbleTextCode nibble_trainer_new(NibbleText special_tokens, size_t vocab_size, size_t max_letters,
                                  NibbleTrainer** trainer, NibbleBytes* out);
void nibble_trainer_free(NibbleTrainer* trainer);
// Counts the words of one text, without those of more than 1000 letters, and without words
// that are new when max_letters is reached.
NibbleTextCode nibble_trainer_count(NibbleTrainer* trainer, NibbleText text, NibbleBytes* out);
// out: the text of a tokenizer.json.
NibbleTextCode nibble_trainer_train(const NibbleTrainer* trainer, NibbleBytes* out);
// Peak memory of a trainer, its counts included, with `letters` letters of different words.
size_t nibble_trainer_peak_bytes(size_t letters, size_t vocab_size);

typedef struct NibbleRenderInput {
  NibbleText messages;   // JSON array of objects
  NibbleText tools;      // JSON array; empty: none
  NibbleText variables;  // JSON object with the template's other variables; empty: none
  bool add_generation_prompt;
  int64_t now_unix_seconds;  // for strftime_now
} NibbleRenderInput;

// special_tokens: JSON object such as {"bos_token": "<s>"}.
NibbleTextCode nibble_template_compile(NibbleText source, NibbleText special_tokens, NibbleTemplate** compiled,
                                       NibbleBytes* out);
void nibble_template_free(NibbleTemplate* compiled);
// out: the rendered text.
NibbleTextCode nibble_template_render(const NibbleTemplate* compiled, const NibbleRenderInput* input, NibbleBytes* out);

// Renders twice. out: as for nibble_template_render. turns: for each message two
// uint64, the first byte of its turn in the text and the byte after its last; equal if
// the template prints only whitespace for it. generation: the same for each {% generation %}
// block, in order. unknown: why turns and generation are unknown (both are then empty),
// otherwise empty.
NibbleTextCode nibble_template_render_turns(const NibbleTemplate* compiled, const NibbleRenderInput* input,
                                            NibbleBytes* turns, NibbleBytes* generation, NibbleBytes* unknown,
                                            NibbleBytes* out);
// Whether the template has a {% generation %} block.
bool nibble_template_has_generation(const NibbleTemplate* compiled);

// A vocabulary for grammars. Token i adds the bytes of `blob` from ends[i - 1] (or 0) to ends[i] to a text. A token
// without bytes, or with more than 1000, never matches. special[i]: not 0 if the token is special; it matches no text,
// but a Lark grammar may name it (<|name|>).
typedef struct NibbleVocabulary {
  NibbleText blob;
  const uint32_t* ends;
  const uint8_t* special;
  size_t size;  // of ends and special
  const int32_t* end_tokens;
  size_t num_end_tokens;
} NibbleVocabulary;

// NOLINTBEGIN(readability-identifier-naming): as above.
typedef enum NibbleGrammarKind {
  NIBBLE_GRAMMAR_JSON_SCHEMA = 0,
  NIBBLE_GRAMMAR_REGEX = 1,
  NIBBLE_GRAMMAR_CHOICE = 2,  // the source is a JSON list of texts
  NIBBLE_GRAMMAR_LARK = 3,
  NIBBLE_GRAMMAR_TOOLS =
      4,  // Lark of the server: may name tokens by number; schemas have blanks after commas and colons
} NibbleGrammarKind;
// NOLINTEND(readability-identifier-naming)

// Compiles grammars for one vocabulary; thread-safe. `tokenizer` must outlive the compiler, its grammars and their
// followers. INVALID: the vocabulary has no end token.
NibbleTextCode nibble_compiler_new(const NibbleTokenizer* tokenizer, const NibbleVocabulary* vocabulary,
                                   NibbleCompiler** compiler, NibbleBytes* out);
void nibble_compiler_free(NibbleCompiler* compiler);
// source: at most 256 KiB. Takes at most 3 s of processor time and 192 MiB besides the stack, and the grammar at most
// 32 MiB; otherwise INVALID. The grammar is thread-safe.
NibbleTextCode nibble_grammar_compile(const NibbleCompiler* compiler, NibbleGrammarKind kind, NibbleText source,
                                      NibbleGrammar** grammar, NibbleBytes* out);
void nibble_grammar_free(NibbleGrammar* grammar);            // its followers stay valid
int64_t nibble_grammar_bytes(const NibbleGrammar* grammar);  // its memory
// A follower knows the tokens of one text so far. One thread at a time.
NibbleTextCode nibble_follower_new(const NibbleGrammar* grammar, NibbleFollower** follower, NibbleBytes* out);
void nibble_follower_free(NibbleFollower* follower);
// Sets bit i % 32 of allowed[i / 32] if token i may be next. After a complete text, only end tokens may be. INVALID:
// the grammar is too costly at this point of the text.
NibbleTextCode nibble_follower_allowed(NibbleFollower* follower, uint32_t* allowed, size_t num_words, NibbleBytes* out);
// Adds an allowed token to the text. INVALID: as above.
NibbleTextCode nibble_follower_accept(NibbleFollower* follower, int32_t token, NibbleBytes* out);

#ifdef __cplusplus
}
#endif

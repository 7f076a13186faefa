"""The texts of the token goldens: scripts, emoji, digits, blanks, code, corner cases."""

TEXTS = [
    "",
    " ",
    "Hello world",
    "  two blanks,\ttab\n\nnew lines \n  indented\r\nwindows  ",
    "In 1969, 2025 and 31415926535 there were 007 agents; 3.14 or 1,000,000?",
    "I'm sure we'll say it's they've, I'd, you're, CAN'T, O'Neil's 'll",
    "El ni\u00f1o comi\u00f3 cig\u00fce\u00f1as; \u00c7a va? Stra\u00dfe, \u0141\u00f3d\u017a, \u0130stanbul",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \uc548\ub155\ud558\uc138\uc694 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0967\u0968\u0969 \u0664\u0665\u0666 \u2167 \u00bd \u00b2 \u3007",
    "emoji \U0001f600\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1eb\U0001f1f7 \u2764\ufe0f \U0001f999!",
    "for (int i = 0; i < 10; ++i) { x[i] += y->z; } // $5 ^ ~ | `q` <= >=",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|> <|im_start|",
    "e\u0301 vs \u00e9 \u00a0nbsp \u2003em \u3000wide \u200bzero \ufeffbom",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa        bbbb----====____....",
    "x\x00y\x01\x7f \u0085next \u2028line \u2581block \u2581\u2581",
]

# Training text of the small vocabularies; long enough that merges cross digits, punctuation and letters, so that each
# pre-tokenizer cuts some of them.
TRAINING = (
    TEXTS
    + ["the cat sat on the mat and then the other cats came 1969 1969 2025 2025 "] * 4
    + ["hello hello world world !!! ... --- == <= >= :: -> 123456 123456 "] * 4
    + ["\u4f60\u597d \u4e16\u754c \u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \U0001f600\U0001f600 \U0001f44d caf\u00e9 "] * 4
    + ["I'm it's we'll they've\n\n\n  indented\n\n    more\t\ttabs "] * 4
)

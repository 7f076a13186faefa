// Separates calls of tools from the other text of an answer, while the text arrives.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/tool_format.h"

namespace nibble::text {

// Reports a call as soon as its name is known, and its arguments while they arrive. The joined results do not depend on
// how the text is cut. A call must name a tool of the request, and its arguments must be a JSON object. Other text that
// looks like a call is content. If this turns out only after the call was reported, the call is marked as malformed and
// its complete text becomes content; so does a call that has not ended when the text ends. Blanks before and after a
// call, and between calls, are in no result. One thread.
class ToolParser {
 public:
  struct Options {
    ToolFormat format = ToolFormat::kHermes;
    std::vector<std::string> names;  // of the tools
    bool parallel = true;            // false: leaves out all calls after the first that has ended
  };
  // A part of one call.
  struct CallPart {
    int index = 0;          // of the call, from 0; a malformed call keeps its index
    std::string name;       // in the first part of a call, otherwise ""
    std::string arguments;  // the next piece
    bool malformed = false;
  };
  struct Result {
    std::string content;
    std::vector<CallPart> calls;  // at most one part of each call
  };

  explicit ToolParser(Options options) : options_(std::move(options)) {}

  Result Push(std::string_view text);
  // Ends the text.
  Result Finish();
  // Calls that have ended and were reported.
  int num_calls() const { return num_calls_; }

 private:
  enum class State {
    kText,        // held_: blanks, then perhaps the beginning of a marker
    kBegin,       // after a marker, before the object, the list or the name
    kItem,        // in a list, before an object
    kFirstKey,    // after the brace of a call's object
    kNextKey,     // after a comma
    kKey,         // in a key
    kColon,       // after a key
    kValue,       // before a value
    kInValue,     // in a value
    kAfterValue,  // before a comma or the brace that ends the object
    kClose,       // after a Hermes call; held_: blanks, then perhaps a part of the end marker
    kAfterItem,   // in a list, after an object
    kToolName,    // of a Mistral call by name
    kToolMarker,  // after that name: a marker
    kCallId,      // before the marker of the arguments
  };
  // Finds the end of a JSON value. Checks only what that requires: brackets, strings and their control characters.
  class ValueScanner {
   public:
    enum class Found { kMore, kEnd, kEndBefore, kError };
    void Begin() { *this = ValueScanner(); }
    Found Take(char c);

   private:
    std::string closers_;
    bool in_string_ = false, escaped_ = false, plain_ = false;
  };

  void Take(char c);
  void TakeBegin(char c);  // after the marker
  void TakeClose(char c);  // after a call of kHermes
  void TakeText(char c);
  void TakeValue(char c);
  void TakeName(char c);
  bool IsLeadingBlank(char c);
  void Release();
  bool MayBegin(std::string_view body, bool* complete) const;
  void BeginValue(char c);
  void EndObject();
  void BeginCall();
  void AddArguments(std::string_view piece);
  void EndCall();
  void ForgetCall();
  // The text since the call's beginning is content.
  void Fail();
  // The same, and then reads `c`, the last character of held_, again as text.
  void FailAt(char c);
  CallPart& Part();
  bool shown() const { return options_.parallel || num_calls_ == 0; }

  const Options options_;
  Result result_;
  State state_ = State::kText;
  std::string held_;            // text that is not in a result yet, from the blanks before a marker or a call on
  std::size_t num_blanks_ = 0;  // at the beginning of held_, in kText and kClose
  bool at_start_ = true;        // only blanks, and calls with what separates them, so far
  bool after_call_ = false;     // no content since the last call
  int num_calls_ = 0;           // that have ended and were reported
  int next_index_ = 0;

  // The current call.
  bool begun_ = false;
  bool in_list_ = false;  // a Mistral list
  bool by_name_ = false;  // a Mistral call by name
  std::string key_, name_, value_, arguments_, marker_;
  bool has_name_ = false, has_arguments_ = false, has_others_ = false;
  ValueScanner scanner_;
};

}  // namespace nibble::text

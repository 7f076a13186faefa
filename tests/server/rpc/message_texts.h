// The fields of any message that hold text.
#pragma once
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace nibble::testing_support {

// A string or bytes field of a message, after the fields of the messages around it.
using TextPath = std::vector<const google::protobuf::FieldDescriptor*>;

// Adds every such field of the message and of the messages in it, down to kMaxDepth. Call it with an empty `above`.
inline void FindTexts(const google::protobuf::Descriptor* type, const TextPath& above, std::vector<TextPath>& found) {
  constexpr std::size_t kMaxDepth = 5;  // messages may contain themselves
  using google::protobuf::FieldDescriptor;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    TextPath path = above;
    path.push_back(field);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      found.push_back(path);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && path.size() < kMaxDepth) {
      FindTexts(field->message_type(), path, found);
    }
  }
}

// Sets the field, or adds to it if it is repeated.
inline void SetText(google::protobuf::Message* message, const TextPath& path, const std::string& text) {
  using google::protobuf::FieldDescriptor;
  for (const FieldDescriptor* field : path) {
    const auto* reflection = message->GetReflection();
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
      message =
          field->is_repeated() ? reflection->AddMessage(message, field) : reflection->MutableMessage(message, field);
    } else if (field->is_repeated()) {
      reflection->AddString(message, field, text);
    } else {
      reflection->SetString(message, field, text);
    }
  }
}

// Whether the field holds a path, or the name of something that is or will be on the disk. Excludes filters, which
// match nothing if the text is hostile, the names of tools and of a message's author, the name in the header of an
// upload, which only people read, and file names in an upload, which follow the header (S4UploadedFilesHavePlainNames
// in hostile_requests_test.cc).
inline bool NamesAFile(const google::protobuf::FieldDescriptor* field) {
  static const std::set<std::string> names = {"name",
                                              "model",
                                              "base_model",
                                              "output_model",
                                              "dataset",
                                              "train_dataset",
                                              "eval_dataset",
                                              "calibration_dataset",
                                              "checkpoint",
                                              "resume_from",
                                              "warm_start_from",
                                              "artifact_id",
                                              "upload_id",
                                              "server_path",
                                              "path"};
  static const std::set<std::string> others = {"ChatMessage", "FileEntry", "JobFilter",        "ListOperationsRequest",
                                               "Tool",        "ToolCall",  "UploadModelHeader"};
  return names.count(field->name()) > 0 && others.count(field->containing_type()->name()) == 0;
}

}  // namespace nibble::testing_support

#include "server/trainer/attempt_data.h"

#include <algorithm>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/held_out.h"
#include "server/data/token_writer.h"
#include "server/model/text_assets.h"
#include "server/store/published_directory.h"

namespace nibble::trainer {

absl::StatusOr<AttemptData> LoadAttemptData(base::FileSystem& files, const jobs::AttemptOrder& order,
                                            const Recipe& recipe, const kernels::Stream& stream,
                                            const base::Cancelled& cancelled) {
  const jobs::DataConfig& settings = order.spec.data;
  if (recipe.max_positions() < settings.max_seq_len) {
    return base::FieldError("data.max_seq_len",
                            base::StrCat("is ", settings.max_seq_len, ", the model takes ", recipe.max_positions()));
  }
  NIBBLE_ASSIGN_OR_RETURN(const model::TextAssets text, model::LoadTextAssets(recipe.text_directory()));
  const std::string train_format = settings.format.value_or("text");
  NIBBLE_ASSIGN_OR_RETURN(const data::RowFormat train_row_format, data::ParseRowFormat(train_format));
  std::string data_digest;  // of the last file that was loaded
  const auto load = [&](const std::string& path, const std::string& tokens_directory,
                        const std::string& format_name) -> absl::StatusOr<data::Dataset> {
    NIBBLE_ASSIGN_OR_RETURN(const data::RowFormat format, data::ParseRowFormat(format_name));
    NIBBLE_ASSIGN_OR_RETURN(const store::ManifestEntry data_file, store::HashFile(path, cancelled));
    data_digest = data_file.sha256;
    const data::TokenSource source = {
        .data_path = path,
        .data_sha256 = data_digest,
        .tokens_directory = tokens_directory,
        .format = format,
        .text = text,
        .config = recipe.config(),
        .options = {.max_seq_len = settings.max_seq_len,
                    .overlong = data::OverlongFor(settings.overlong.value_or(""), train_row_format, format),
                    .train_on_prompt = settings.train_on_prompt,
                    .add_special_tokens = settings.add_special_tokens}};
    return data::LoadTokens(
        files, source,
        {.threads = stream.pool != nullptr ? stream.pool->num_threads() : 1,
         .min_free_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(order.min_free_bytes, 0)),
         .verify = true,
         .cancelled = cancelled});
  };
  AttemptData data;
  NIBBLE_ASSIGN_OR_RETURN(data.train, load(order.train_data_path, order.train_tokens_directory, train_format));
  data.identity = {.spec_digest = jobs::Digest(order.spec),
                   .base_digest = recipe.base_digest(),
                   .data_digest = data_digest,
                   .isa = kernels::Name(stream.isa),
                   .threads = order.threads,
                   .version = order.nibble_version};
  data.has_eval = !order.eval_data_path.empty() || order.spec.eval_fraction.has_value();
  if (order.spec.eval_fraction.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(data::HeldOut parts, data::HoldOut(data.train, *order.spec.eval_fraction));
    data.train = std::move(parts.train);
    data.eval = std::move(parts.eval);
  } else if (data.has_eval) {
    NIBBLE_ASSIGN_OR_RETURN(data.eval, load(order.eval_data_path, order.eval_tokens_directory,
                                            order.eval_format.empty() ? train_format : order.eval_format));
  }
  return data;
}

std::unique_ptr<data::Loader> MakeLoader(const jobs::JobSpec& spec, const AttemptData& data) {
  return std::make_unique<data::Loader>(data.train.examples,
                                        spec.data.packing == "none" ? data::Packing::kNone : data::Packing::kSegmented,
                                        spec.data.max_seq_len, static_cast<std::uint64_t>(spec.data.shuffle_seed));
}

}  // namespace nibble::trainer

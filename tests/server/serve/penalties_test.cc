#include "server/serve/penalties.h"

#include <gmock/gmock.h>

#include <limits>

namespace nibble::serve {
namespace {

using testing::ElementsAre;

std::vector<float> Applied(const Penalties& penalties, const std::vector<std::int32_t>& prompt,
                           const std::vector<std::int32_t>& generated) {
  std::vector<float> logits = {2.0f, -2.0f, 1.0f, 0.0f, 0.5f};
  Apply(penalties, prompt, generated, logits);
  return logits;
}

TEST(PenaltiesTest, UnsetPenaltiesChangeNothing) {
  EXPECT_FALSE(Penalties{}.any());
  EXPECT_THAT(Applied({}, {0, 1}, {2, 2}), ElementsAre(2.0f, -2.0f, 1.0f, 0.0f, 0.5f));
}

// The repetition penalty of CTRL (arXiv:1909.05858) applies once per token, however often the token occurs. It divides
// positive logits and multiplies the others, so a penalty above 1 lowers both.
TEST(PenaltiesTest, RepetitionAppliesOncePerTokenOfPromptAndAnswer) {
  EXPECT_THAT(Applied({.repetition = 2, .bias = {}}, {0, 1, 0}, {2, 2, 3}), ElementsAre(1.0f, -4.0f, 0.5f, 0.0f, 0.5f));
  EXPECT_THAT(Applied({.repetition = 0.5f, .bias = {}}, {0}, {1}), ElementsAre(4.0f, -1.0f, 1.0f, 0.0f, 0.5f));
}

TEST(PenaltiesTest, PresenceAndFrequencyCountOnlyTheAnswer) {
  EXPECT_THAT(Applied({.presence = 0.25f, .bias = {}}, {0}, {2, 2, 3}), ElementsAre(2.0f, -2.0f, 0.75f, -0.25f, 0.5f));
  EXPECT_THAT(Applied({.frequency = 0.25f, .bias = {}}, {0}, {2, 2, 3}), ElementsAre(2.0f, -2.0f, 0.5f, -0.25f, 0.5f));
  EXPECT_THAT(Applied({.presence = -1, .frequency = 0.25f, .bias = {}}, {}, {2, 2}),
              ElementsAre(2.0f, -2.0f, 1.5f, 0.0f, 0.5f));
}

TEST(PenaltiesTest, BiasIsAddedBeforeThePenalties) {
  EXPECT_THAT(Applied({.repetition = 2, .bias = {{1, 4.0f}, {3, -1.0f}}}, {1, 3}, {}),
              ElementsAre(2.0f, 1.0f, 1.0f, -2.0f, 0.5f));
}

TEST(PenaltiesTest, MaskedTokensAreMinusInfinityAndUnknownTokensAreIgnored) {
  std::vector<float> logits = {2.0f, -2.0f, 1.0f};
  MaskTokens(std::vector<std::int32_t>{0, 0, -1, 3}, logits);
  EXPECT_THAT(logits, ElementsAre(-std::numeric_limits<float>::infinity(), -2.0f, 1.0f));
}

}  // namespace
}  // namespace nibble::serve

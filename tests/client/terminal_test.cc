#include "client/cli/terminal.h"

#include <gtest/gtest.h>

#include <sstream>

#include "client/cli/session.h"

namespace nibble::cli {
namespace {

TEST(TableTest, AlignsColumnsByCharacters) {
  Table table({"NAME", "SIZE"});
  table.Add(
      {"n\xC3\xA4"
       "chste",
       "1 B"});
  table.Add({"b", "20 B"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(),
            "NAME     SIZE\nn\xC3\xA4"
            "chste  1 B\nb        20 B\n");
}

TEST(ProgressTest, PrintsPlainLinesWithoutATerminal) {
  std::istringstream in;
  std::ostringstream out, err;
  Terminal terminal{in, out, err};
  {
    Progress progress(terminal);
    for (int i = 0; i <= 1000; ++i) progress.Update("upload", i, 1000);
    progress.Update("quantize", 1, 0);
    progress.Update("", 0, 0);
  }
  EXPECT_EQ(
      err.str(),
      "upload 0%\nupload 10%\nupload 20%\nupload 30%\nupload 40%\nupload 50%\nupload 60%\nupload 70%\nupload 80%\n"
      "upload 90%\nupload 100%\nquantize\n");
  EXPECT_EQ(out.str(), "");
}

TEST(ProgressTest, RedrawsOneLineOnATerminal) {
  std::istringstream in;
  std::ostringstream out, err;
  Terminal terminal{.in = in, .out = out, .err = err, .err_is_tty = true};
  {
    Progress progress(terminal);
    for (int i = 0; i <= 1000; ++i) progress.Update("upload", i, 1000);
  }
  EXPECT_NE(err.str().find("\rupload [##############################] 100%"), std::string::npos) << err.str();
  EXPECT_EQ(err.str().find('\n'), err.str().size() - 1);
}

TEST(TextTest, PrintableDropsTerminalControlCharacters) {
  EXPECT_EQ(Printable("a\tb\nc\x1b[31m\x07\x7f\xC3\xA4"), "a\tb\nc[31m\xC3\xA4");
  EXPECT_EQ(Printable("a\xC2\x9B"
                      "2Jb\xC2\x85\xC2\xA0\xC2"),
            "a2Jb\xC2\xA0\xC2")
      << "U+009B means ESC [";
}

TEST(TextTest, VisibleShowsWhereControlCharactersWere) {
  EXPECT_EQ(Visible("a\tb\nc\x1b[31m\r\xC2\x9B\xC3\xA4"), "a\tb\nc\xEF\xBF\xBD[31m\xEF\xBF\xBD\xEF\xBF\xBD\xC3\xA4");
}

TEST(TextTest, FormatsNumbersForPeople) {
  EXPECT_EQ(HumanNumber(0.000125, 3), "0.000125");
  EXPECT_EQ(HumanNumber(std::numeric_limits<double>::quiet_NaN(), 3), "-");
}

TEST(TextTest, UuidsAreOfVersion4AndDiffer) {
  const std::string a = NewUuid();
  EXPECT_EQ(a.size(), 36u);
  EXPECT_EQ(a[14], '4');
  EXPECT_NE(std::string("89ab").find(a[19]), std::string::npos);
  EXPECT_NE(a, NewUuid());
}

}  // namespace
}  // namespace nibble::cli

#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace gangline {
namespace {

TEST(Result, CarriesAValueOrAnErrorWithItsCode) {
    const Result<int> good = 7;
    ASSERT_TRUE(good.ok());
    EXPECT_EQ(*good, 7);
    const Result<int> bad = Error{Code::NoSpace, "full"};
    ASSERT_FALSE(bad.ok());
    EXPECT_EQ(bad.error().code, Code::NoSpace);
    EXPECT_EQ(bad.error().message, "full");
}

TEST(Result, MovesValuesThatCannotBeCopied) {
    Result<std::unique_ptr<int>> made = std::make_unique<int>(3);
    const std::unique_ptr<int> taken = std::move(made).value();
    EXPECT_EQ(*taken, 3);
}

TEST(Result, ErrnoDecidesTheCode) {
    errno = ENOSPC;
    EXPECT_EQ(errno_error("write").code, Code::NoSpace);
    errno = ENOENT;
    EXPECT_EQ(errno_error("open").code, Code::NotFound);
    errno = EPERM;
    EXPECT_EQ(errno_error("open").code, Code::Internal);
}

TEST(ResultDeathTest, TakingTheValueOfAFailedResultIsABug) {
    const Result<int> bad = Error{Code::Internal, "broken"};
    EXPECT_DEATH(bad.value(), "value\\(\\) of a failed Result: broken");
}

}  // namespace
}  // namespace gangline

#include "runner/cli/reservation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"

namespace gangline::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kNow = 1'700'000'000;

Line line_of(const std::vector<std::string>& words) {
    const Verb& verb = *find_verb("reserve");
    auto parsed = parse_words(verb.options, words, verb.stop, "");
    EXPECT_TRUE(parsed.ok()) << (parsed ? "" : parsed.error().message);
    Line line;
    line.verb = "reserve";
    line.given = parsed->given;
    line.words = parsed->words;
    return line;
}

std::string refusal(const std::vector<std::string>& words) {
    const auto reservation = build_reservation(line_of(words), kNow);
    return reservation ? "" : reservation.error().message;
}

TEST(Reservation, HasNodesAStartAnEndAndPeople) {
    const auto built = build_reservation(line_of({"course", "--nodes", "n10,n[1-2],n1", "--start", "now+2hours", "--duration", "1:00:00",
                                                  "--users", "alice,bob", "--teams=vision", "--note", "day two"}),
                                         kNow);
    ASSERT_TRUE(built.ok()) << built.error().message;
    EXPECT_EQ(built->name(), "course");
    EXPECT_THAT(built->nodes(), ElementsAre("n1", "n2", "n10"));
    EXPECT_EQ(built->start_unix_ms(), (kNow + 7200) * 1000);
    EXPECT_EQ(built->end_unix_ms(), (kNow + 10800) * 1000);
    EXPECT_THAT(built->users(), ElementsAre("alice", "bob"));
    EXPECT_THAT(built->teams(), ElementsAre("vision"));
    EXPECT_FALSE(built->maintenance());
    EXPECT_EQ(built->note(), "day two");
}

TEST(Reservation, StartsNowUnlessItIsSaidWhen) {
    const auto built = build_reservation(line_of({"pump", "--nodes=n7", "--duration=2-00", "--maintenance"}), kNow);
    ASSERT_TRUE(built.ok()) << built.error().message;
    EXPECT_EQ(built->start_unix_ms(), kNow * 1000);
    EXPECT_EQ(built->end_unix_ms(), (kNow + 172800) * 1000);
    EXPECT_TRUE(built->maintenance());
}

TEST(Reservation, WhatIsMissingOrWrongIsNamed) {
    EXPECT_THAT(refusal({}), HasSubstr("reserve takes one name"));
    EXPECT_THAT(refusal({"a", "b"}), HasSubstr("reserve takes one name"));
    EXPECT_THAT(refusal({"a,b", "--nodes=n1", "--duration=5", "--maintenance"}), HasSubstr("'a,b' is not the name of one reservation"));
    EXPECT_THAT(refusal({"a", "--duration=5", "--maintenance"}), HasSubstr("no nodes are named"));
    EXPECT_THAT(refusal({"a", "--nodes=n[", "--duration=5", "--maintenance"}), HasSubstr("--nodes: "));
    EXPECT_THAT(refusal({"a", "--nodes=n1", "--maintenance"}), HasSubstr("--duration TIME"));
    EXPECT_THAT(refusal({"a", "--nodes=n1", "--duration=long", "--maintenance"}), HasSubstr("--duration: 'long'"));
    EXPECT_THAT(refusal({"a", "--nodes=n1", "--duration=UNLIMITED", "--maintenance"}), HasSubstr("a reservation ends"));
    EXPECT_THAT(refusal({"a", "--nodes=n1", "--duration=9999-00", "--maintenance"}), HasSubstr("at most 366 days"));
    EXPECT_THAT(refusal({"a", "--nodes=n1", "--duration=5", "--start=soon", "--maintenance"}), HasSubstr("--start: "));
    EXPECT_THAT(refusal({"a", "--nodes=n1", "--duration=5", "--start=2001-01-01", "--maintenance"}), HasSubstr("is over already"));
}

TEST(Reservation, IsForSomeOrForNobody) {
    EXPECT_THAT(refusal({"a", "--nodes=n1", "--duration=5"}), HasSubstr("for whom is not said"));
    EXPECT_THAT(refusal({"a", "--nodes=n1", "--duration=5", "--maintenance", "--teams=t"}), HasSubstr("leave out --users and --teams"));
    EXPECT_THAT(refusal({"a", "--nodes=n1", "--duration=5", "--users=a,,b"}), HasSubstr("--users: 'a,,b' is not a list of names"));
}

TEST(Reservation, IsARowThatSaysWhenAndForWhom) {
    Reservations all;
    proto::Reservation& course = *all.Add();
    course.set_name("course");
    for (const char* const node : {"n1", "n2"}) course.add_nodes(node);
    course.set_start_unix_ms(0);
    course.set_end_unix_ms(3'600'000);
    course.add_users("alice");
    course.add_teams("vision");
    course.set_set_by("ops");
    proto::Reservation& pump = *all.Add() = course;
    pump.set_name("pump");
    pump.set_maintenance(true);
    pump.set_start_unix_ms(1'200'000);
    const std::string text = reservations_text(all, {}, 600'000);
    EXPECT_THAT(text, HasSubstr("course  n[1-2]  1970-01-01T00:00:00Z  1970-01-01T01:00:00Z  now, 50m 00s left  users alice, teams vision  ops\n"));
    EXPECT_THAT(text, HasSubstr("in 10m 00s"));
    EXPECT_THAT(text, HasSubstr("maintenance"));
    EXPECT_THAT(reservations_text(all, {}, 3'600'000), HasSubstr("over"));
}

TEST(Reservation, IsToldOnceInTheCoordinatorsWords) {
    proto::Reservation reservation;
    reservation.set_name("course");
    reservation.add_users("ana");
    EXPECT_EQ(reserved_text(reservation, "reservation course: 2 nodes from A to B"), "Reservation course: 2 nodes from A to B\n");
    EXPECT_EQ(reserved_text(reservation, ""), "Reservation course is set, for users ana\n");
}

}  // namespace
}  // namespace gangline::runner

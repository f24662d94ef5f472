#include "runner/shepherd/step_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gangline::runner {
namespace {

std::vector<proto::Placement> job_of(const std::vector<std::uint32_t>& ranks, std::uint32_t cards_per_rank = 0) {
    std::vector<proto::Placement> gang;
    std::uint32_t next = 0;
    for (const std::uint32_t count : ranks) {
        proto::Placement placement;
        placement.set_node("n" + std::to_string(gang.size()));
        placement.set_first_rank(next);
        placement.set_rank_count(count);
        next += count;
        for (std::uint32_t i = 0; i < count * cards_per_rank; ++i) placement.add_cards(i);
        gang.push_back(placement);
    }
    return gang;
}

struct Wish {
    std::uint32_t ranks = 0, nodes = 0, per_node = 0, cpus = 0;
};
proto::StepRequest request(const Wish& wish) {
    proto::StepRequest message;
    message.set_ranks(wish.ranks);
    message.set_nodes(wish.nodes);
    message.set_ranks_per_node(wish.per_node);
    message.set_cpus_per_rank(wish.cpus);
    return message;
}

std::string shape(const Result<StepLayout>& layout) {
    if (!layout) return layout.error().message;
    std::string text;
    for (const proto::Placement& placement : layout->gang) {
        text += placement.node() + ":" + std::to_string(placement.first_rank()) + "+" + std::to_string(placement.rank_count()) + " ";
    }
    return text;
}

TEST(StepLayout, WithoutWishesAStepIsAsWideAsTheJob) {
    EXPECT_EQ(shape(lay_out_step(job_of({2, 1}), {}, request({}), {})), "n0:0+2 n1:2+1 ");
}

TEST(StepLayout, FewerRanksAreSpreadOverAllNodes) {
    const auto job = job_of({4, 4});
    EXPECT_EQ(shape(lay_out_step(job, {}, request({.ranks = 3}), {})), "n0:0+2 n1:2+1 ");
    EXPECT_EQ(shape(lay_out_step(job, {}, request({.ranks = 1}), {})), "n0:0+1 ");
    EXPECT_EQ(shape(lay_out_step(job, {}, request({.ranks = 3, .nodes = 1}), {})), "n0:0+3 ");
}

TEST(StepLayout, RanksPerNodeDecideHowManyNodesAreUsed) {
    const auto job = job_of({4, 4, 4});
    EXPECT_EQ(shape(lay_out_step(job, {}, request({.per_node = 1}), {})), "n0:0+1 n1:1+1 n2:2+1 ");
    EXPECT_EQ(shape(lay_out_step(job, {}, request({.ranks = 4, .per_node = 2}), {})), "n0:0+2 n1:2+2 ");
    EXPECT_EQ(shape(lay_out_step(job, {}, request({.nodes = 2, .per_node = 3}), {})), "n0:0+3 n1:3+3 ");
}

TEST(StepLayout, CpusPerRankChangeHowManyFit) {
    proto::JobSpec spec;
    spec.set_cpus_per_rank(2);
    EXPECT_EQ(shape(lay_out_step(job_of({4}), spec, request({.cpus = 4}), {})), "n0:0+2 ");
    EXPECT_EQ(shape(lay_out_step(job_of({4}), spec, request({.ranks = 8, .cpus = 1}), {})), "n0:0+8 ");
}

TEST(StepLayout, TooMuchIsRefusedWithTheMostThatFits) {
    const auto job = job_of({2, 2});
    EXPECT_THAT(shape(lay_out_step(job, {}, request({.ranks = 5}), {})), testing::HasSubstr("--ntasks=5: this job has room for 4"));
    EXPECT_THAT(shape(lay_out_step(job, {}, request({.nodes = 3}), {})), testing::HasSubstr("--nodes=3"));
    EXPECT_THAT(shape(lay_out_step(job, {}, request({.per_node = 3}), {})), testing::HasSubstr("--ntasks-per-node=3"));
    EXPECT_THAT(shape(lay_out_step(job, {}, request({.ranks = 1, .nodes = 2}), {})), testing::HasSubstr("every node needs a rank"));
    EXPECT_THAT(shape(lay_out_step(job, {}, request({.cpus = 64}), {})), testing::HasSubstr("--cpus-per-task=64"));
}

TEST(StepLayout, EachRankHasTheCardsOfItsSlot) {
    const auto layout = lay_out_step(job_of({2, 2}, 2), {}, request({}), {});
    ASSERT_TRUE(layout);
    EXPECT_THAT(layout->gang[0].cards(), testing::ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(layout->gang[1].cards(), testing::ElementsAre(0, 1, 2, 3));
}

TEST(StepLayout, OneRankANodeGetsAllCardsOfTheNode) {
    const auto layout = lay_out_step(job_of({4}, 1), {}, request({.per_node = 1}), {});
    ASSERT_TRUE(layout);
    EXPECT_THAT(layout->gang[0].cards(), testing::ElementsAre(0, 1, 2, 3));
}

TEST(StepLayout, ASecondStepTakesFreeSlotsFirst) {
    const auto job = job_of({4}, 1);
    const auto first = lay_out_step(job, {}, request({.ranks = 1}), {});
    ASSERT_TRUE(first);
    EXPECT_THAT(first->gang[0].cards(), testing::ElementsAre(0));
    const std::set<Slot> taken(first->slots.begin(), first->slots.end());
    const auto second = lay_out_step(job, {}, request({.ranks = 2}), taken);
    ASSERT_TRUE(second);
    EXPECT_THAT(second->gang[0].cards(), testing::ElementsAre(1, 2));
    const auto all = lay_out_step(job, {}, request({.ranks = 4}), taken);
    ASSERT_TRUE(all);
    EXPECT_THAT(all->gang[0].cards(), testing::ElementsAre(0, 1, 2, 3)) << "shared where nothing else is left";
}

}  // namespace
}  // namespace gangline::runner

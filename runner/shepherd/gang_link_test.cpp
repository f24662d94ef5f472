#include "runner/shepherd/gang_link.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <optional>

#include "base/wire/wire.h"

namespace gangline::runner {
namespace {

struct Seen {
    std::vector<proto::FenceDone> fences;
    std::vector<proto::WorkerRelay> relays;
    std::vector<proto::StartStep> starts;
    std::vector<proto::StopStep> stops;
    std::vector<std::pair<std::uint32_t, proto::StepExit>> exits;
    std::vector<std::pair<std::uint32_t, proto::StepOutput>> outputs;
    std::optional<std::string> modex;
};

// The links of a gang with one rank on each node, all in this process.
class Links {
  public:
    explicit Links(std::uint32_t nodes, std::uint32_t attempt = 1) : seen(nodes) {
        id.set_job(7);
        id.set_attempt(attempt);
        for (std::uint32_t i = 0; i < nodes; ++i) {
            proto::Placement placement;
            placement.set_node("n" + std::to_string(i));
            placement.set_address("127.0.0.1");
            placement.set_first_rank(i);
            placement.set_rank_count(1);
            gang.push_back(placement);
        }
        for (std::uint32_t i = 0; i < nodes; ++i) links.push_back(make(i));
        launch = launch_message();
    }
    std::unique_ptr<GangLink> make(std::uint32_t index) {
        GangEvents events;
        Seen& s = seen[index];
        events.fence_done = [&s](const proto::FenceDone& done) { s.fences.push_back(done); };
        events.relay = [&s](const proto::WorkerRelay& relay) { s.relays.push_back(relay); };
        events.start_step = [&s](const proto::StartStep& step) { s.starts.push_back(step); };
        events.stop_step = [&s](const proto::StopStep& step) { s.stops.push_back(step); };
        events.step_exit = [&s](std::uint32_t from, const proto::StepExit& exit) { s.exits.emplace_back(from, exit); };
        events.step_output = [&s](std::uint32_t from, const proto::StepOutput& output) { s.outputs.emplace_back(from, output); };
        events.modex_request = [this, index](std::uint64_t request, const std::string& space, std::uint32_t rank) {
            links[index]->answer_modex(request, 0, space + "/" + std::to_string(rank));
        };
        events.modex_reply = [&s](std::uint64_t, int status, const std::string& blob) { s.modex = std::to_string(status) + " " + blob; };
        GangLinkOptions options;
        options.id = id;
        options.gang = gang;
        options.node_index = index;
        auto link = GangLink::prepare(options, std::move(events));
        EXPECT_TRUE(link.ok()) << link.error().message;
        return std::move(*link);
    }
    proto::Launch launch_message() const {
        proto::Launch message;
        *message.mutable_id() = id;
        message.set_lead_endpoint(links[0]->endpoint());
        for (std::uint32_t i = 0; i < links.size(); ++i) {
            proto::Peer& peer = *message.add_peers();
            peer.set_node_index(i);
            peer.set_gang_key(links[i]->public_key());
        }
        return message;
    }
    void connect_all() {
        for (auto& link : links) ASSERT_TRUE(link->connect(launch).ok());
        for (auto& link : links) link->add_gang("g", gang);
    }
    // Runs the loops until `until`; false at the deadline.
    bool run(const std::function<bool()>& until, Duration limit = seconds(20)) {
        const TimePoint end = now().steady + limit;
        while (!until()) {
            const TimePoint at = now().steady;
            if (at >= end) return false;
            TimePoint next = end;
            std::vector<pollfd> waiting;
            for (auto& link : links) {
                next = std::min(next, link->next_deadline());
                waiting.push_back({link->fd(), POLLIN, 0});
            }
            ::poll(waiting.data(), waiting.size(), static_cast<int>(std::max<std::int64_t>(to_ms(next - at) + 1, 0)));
            for (std::size_t i = 0; i < links.size(); ++i) {
                if (waiting[i].revents != 0) links[i]->handle();
                links[i]->tick(now().steady);
            }
        }
        return true;
    }
    proto::AttemptId id;
    std::vector<proto::Placement> gang;
    std::vector<Seen> seen;
    std::vector<std::unique_ptr<GangLink>> links;
    proto::Launch launch;
};

TEST(GangLink, OneNodeNeedsNoSocketAndAnswersItself) {
    Links gang(1);
    EXPECT_TRUE(gang.links[0]->endpoint().empty());
    gang.connect_all();
    gang.links[0]->fence("g:*#0", "A", false);
    ASSERT_TRUE(gang.run([&] { return gang.seen[0].fences.size() == 1; }));
    EXPECT_EQ(gang.seen[0].fences[0].blob(), "A");
}

TEST(GangLink, AFenceGathersThePartsOfAllNodes) {
    Links gang(3);
    gang.connect_all();
    for (std::size_t i = 0; i < 3; ++i) gang.links[i]->fence("g:*#0", std::string(1, static_cast<char>('A' + i)), false);
    ASSERT_TRUE(gang.run([&] {
        return gang.seen[0].fences.size() == 1 && gang.seen[1].fences.size() == 1 && gang.seen[2].fences.size() == 1;
    }));
    for (const Seen& seen : gang.seen) EXPECT_EQ(seen.fences[0].blob(), "ABC");
}

TEST(GangLink, APeerThatComesBeforeItsKeyIsKnownIsLetInSoon) {
    Links gang(2);
    ASSERT_TRUE(gang.links[1]->connect(gang.launch).ok());
    gang.links[1]->add_gang("g", gang.gang);
    gang.links[1]->fence("g:*#0", "B", false);
    EXPECT_FALSE(gang.run([&] { return !gang.seen[1].fences.empty(); }, milliseconds(100)));
    ASSERT_TRUE(gang.links[0]->connect(gang.launch).ok());
    gang.links[0]->add_gang("g", gang.gang);
    gang.links[0]->fence("g:*#0", "A", false);
    ASSERT_TRUE(gang.run([&] { return !gang.seen[1].fences.empty(); }));
    EXPECT_EQ(gang.seen[1].fences[0].blob(), "AB");
}

TEST(GangLink, WorkersReachEachOtherThroughTheLead) {
    Links gang(3);
    gang.connect_all();
    proto::WorkerRelay relay;
    relay.set_to_rank(2);
    relay.set_frame("hello");
    EXPECT_TRUE(gang.links[1]->send_relay("g", relay));
    relay.set_to_rank(3);
    EXPECT_FALSE(gang.links[1]->send_relay("g", relay));
    ASSERT_TRUE(gang.run([&] { return gang.seen[2].relays.size() == 1; }));
    EXPECT_EQ(gang.seen[2].relays[0].frame(), "hello");
    EXPECT_TRUE(gang.seen[0].relays.empty());
}

TEST(GangLink, PublishedDataIsFetchedFromTheNodeThatHasIt) {
    Links gang(3);
    gang.connect_all();
    gang.links[1]->ask_modex(5, "g", 2);
    ASSERT_TRUE(gang.run([&] { return gang.seen[1].modex.has_value(); }));
    EXPECT_EQ(*gang.seen[1].modex, "0 g/2");
    gang.links[1]->ask_modex(6, "unknown", 2);
    gang.seen[1].modex.reset();
    ASSERT_TRUE(gang.run([&] { return gang.seen[1].modex.has_value(); }));
    EXPECT_EQ(*gang.seen[1].modex, "-46 ");
}

TEST(GangLink, StepsGoOutAndTheirNewsComesBackWithTheNodeThatSentIt) {
    Links gang(2);
    gang.connect_all();
    proto::StartStep start;
    start.set_step_id(4);
    gang.links[0]->send_start_step(start, 1);
    proto::StopStep stop;
    stop.set_step_id(4);
    stop.set_signal(15);
    gang.links[0]->send_stop_step(stop, 1);
    proto::StepOutput output;
    output.set_data("x");
    gang.links[1]->send_step_output(output);
    gang.links[1]->send_step_exit({});
    ASSERT_TRUE(gang.run([&] { return gang.seen[1].stops.size() == 1 && gang.seen[0].exits.size() == 1; }));
    EXPECT_EQ(gang.seen[1].starts.at(0).step_id(), 4u);
    EXPECT_EQ(gang.seen[0].outputs.at(0).first, 1u);
    EXPECT_EQ(gang.seen[0].exits.at(0).first, 1u);
}

TEST(GangLink, AFailedGangFailsItsFencesEverywhere) {
    Links gang(2);
    gang.connect_all();
    gang.links[1]->fence("g:*#0", "B", false);
    gang.links[0]->fail_gang("g");
    ASSERT_TRUE(gang.run([&] { return !gang.seen[1].fences.empty(); }));
    EXPECT_TRUE(gang.seen[1].fences[0].failed());
}

TEST(GangLink, MessagesOfAnotherAttemptAreDropped) {
    Links gang(2);
    gang.connect_all();
    // The key is right, the attempt is not: as if an old shepherd had kept its place.
    Links old(2, 2);
    old.links[0] = nullptr;
    proto::Launch launch = gang.launch;
    for (proto::Peer& peer : *launch.mutable_peers()) {
        if (peer.node_index() == 1) peer.set_gang_key(old.links[1]->public_key());
    }
    Links fresh(2);
    fresh.links[1] = std::move(old.links[1]);
    launch.set_lead_endpoint(fresh.links[0]->endpoint());
    launch.mutable_peers(0)->set_gang_key(fresh.links[0]->public_key());
    for (auto& link : fresh.links) {
        ASSERT_TRUE(link->connect(launch).ok());
        link->add_gang("g", fresh.gang);
    }
    fresh.links[1]->fence("g:*#0", "B", false);
    fresh.links[0]->fence("g:*#0", "A", false);
    EXPECT_FALSE(fresh.run([&] { return !fresh.seen[0].fences.empty(); }, milliseconds(300)));
}

TEST(GangLink, AStrangerGetsNothing) {
    Links gang(2);
    gang.connect_all();
    auto wire = Wire::create(nullptr);
    ASSERT_TRUE(wire.ok());
    ClientOptions options;
    options.keys = new_key_pair();
    options.endpoint = gang.links[0]->endpoint();
    options.server_key = gang.links[0]->public_key();
    auto stranger = ClientSocket::connect(**wire, options);
    ASSERT_TRUE(stranger.ok());
    proto::GangMessage message;
    *message.mutable_id() = gang.id;
    message.set_from(1);
    message.mutable_fence()->set_key("g:*#0");
    (*stranger)->send(message.SerializeAsString());
    gang.links[0]->fence("g:*#0", "A", false);
    EXPECT_TRUE(gang.run([&] { return (*stranger)->is_refused(); }));
    EXPECT_TRUE(gang.seen[0].fences.empty());
}

TEST(GangLink, ALaunchWithoutAPeersKeyIsRefused) {
    Links gang(3);
    proto::Launch launch = gang.launch;
    launch.mutable_peers()->RemoveLast();
    EXPECT_FALSE(gang.links[0]->connect(launch).ok());
    launch = gang.launch;
    launch.mutable_peers(0)->set_gang_key("short");
    const auto refused = gang.links[1]->connect(launch);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::InvalidArgument);
}

}  // namespace
}  // namespace gangline::runner

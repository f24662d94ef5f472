#pragma once
// The cluster as numbers: what is free on each node, who holds it until when, what is promised to whom from when on.
// A placement is whole or nothing. Pure; one pass of the scheduler builds one.
//
//   domains    0 = the cluster, then blocks, then racks; each is a contiguous range of nodes (nodes stand in the order
//              block, rack, name, so neighbours in rank are neighbours in the network)
//   counts     per domain: how many nodes have at least c cards free; kept at every change, so that a domain that cannot
//              hold a gang is passed over without looking at its nodes
//   promise    cards on a node from a time on, for a gang that waits for them; whoever ends before that time may use them
//   window     a node is kept for a reservation from one time to another: only its own gangs overlap it
//
// Where: the smallest domain that fits; in it the fullest nodes that fit (large holes stay whole); over several racks as few as
// possible, the last one the tightest. With `spread` the emptiest nodes instead.

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gangline::coordinator {

using Ms = std::int64_t;  // milliseconds since 1970
inline constexpr Ms kNever = std::numeric_limits<Ms>::max() / 4;

enum class Level : std::uint8_t { Cluster, Block, Rack, Node };

// What a gang asks for. One of four layouts: `ranks_per_node` on each node; evenly over nodes_min..nodes_max nodes;
// (both 0) as few nodes as possible; elastic: `ranks_per_node` on as many of nodes_min, nodes_min + nodes_step ... nodes_max as fit.
struct Shape {
    std::uint32_t ranks = 1;
    std::uint32_t nodes_min = 0;
    std::uint32_t nodes_max = 0;       // 0 = no limit
    std::uint32_t ranks_per_node = 0;
    std::uint32_t cards_per_rank = 1;  // 0 = CPUs only
    std::uint32_t cpus_per_rank = 0;
    std::uint64_t memory_mib = 0;      // a node
    bool exclusive = false;            // whole nodes, nobody else on them
    bool elastic = false;
    std::uint32_t nodes_step = 1;
    std::uint32_t segment = 0;         // nodes come in groups of so many, each in one rack; 0 = no wish
    bool spread = false;
    std::uint32_t reservation = 0;     // whose windows are its own; 0 = none
    Level within = Level::Cluster;     // all of it in one such domain, or it waits
    std::shared_ptr<const std::vector<bool>> allowed = {};  // by node; nothing = every node

    std::uint64_t cards() const { return std::uint64_t{ranks} * cards_per_rank; }
    std::uint32_t least_ranks() const { return elastic ? nodes_min * ranks_per_node : ranks; }
    std::uint64_t least_cards() const { return std::uint64_t{least_ranks()} * cards_per_rank; }
};

struct Share {
    std::uint32_t node = 0;
    std::uint32_t ranks = 0;
    bool operator==(const Share&) const = default;
};
using Shares = std::vector<Share>;  // in node order
std::uint32_t ranks_of(const Shares& shares);

struct Room {
    std::uint32_t cards = 0;
    std::uint32_t cpus = 0;
    std::uint64_t memory_mib = 0;
};

struct NodeSeed {
    Room all;
    std::uint32_t block = 0;
    std::uint32_t rack = 0;      // racks are numbered through the whole cluster; all nodes of one stand side by side
    bool open = true;            // takes new gangs
    std::uint32_t penalty = 0;   // a node with less is taken first; large gangs (over a rack) never take one that has any
};

class Cluster {
  public:
    explicit Cluster(const std::vector<NodeSeed>& nodes);

    // A gang that runs, or is planned to, until `end` (kNever: nobody knows). Returns its number here.
    std::uint32_t add(const Shape& shape, Shares shares, Ms end);
    void remove(std::uint32_t gang);
    void set_end(std::uint32_t gang, Ms end);
    void set_open(std::uint32_t node, bool open);
    // What a node has beyond gangs that are known (a part that is not proved empty, another system's use).
    void take(std::uint32_t node, const Room& room, bool whole);
    // The gang may count on these places from `from` until `until`. Its places are then only lent to who ends before.
    void promise(const Shape& shape, const Shares& shares, Ms from, Ms until);
    void forget_promises();
    bool has_windows() const { return !windows_.empty(); }
    // Until when the places take such a gang from now on, as far as promises and windows let it.
    Ms longest(const Shape& shape, const Shares& shares, Ms now) const;
    // From `from` until `until` the node takes only gangs of this reservation (none has 0).
    void keep_for(std::uint32_t node, std::uint32_t reservation, Ms from, Ms until);

    // Where a gang that runs from `now` until `end` goes now without delaying any promise; nothing: nowhere.
    // `avoid` (sorted node numbers): taken only when nothing fits without them.
    std::optional<Shares> place(const Shape& shape, Ms now, Ms end, const std::vector<std::uint32_t>& avoid = {}) const;
    // As if there were no promises; without times as if there were no windows either.
    std::optional<Shares> place_ignoring_promises(const Shape& shape, Ms now = 0, Ms end = 0) const;
    // As `place`, in a hurry: promised nodes are left alone by whoever ends after the first promise, ranks are shared evenly.
    std::optional<Shares> place_quickly(const Shape& shape, Ms now, Ms end, bool ignore_promises) const;
    // The earliest time, and where, at which the gang fits for `duration`, when every gang ends when it says.
    struct Opening {
        Ms from = kNever;
        Shares shares;
    };
    std::optional<Opening> earliest(const Shape& shape, Ms now, Ms duration) const;
    // A quick guess of the same: no promises, no domains, even layouts only.
    std::optional<Opening> soonest(const Shape& shape, Ms now) const;
    // Where it would be soonest if gangs without an end ended last.
    std::optional<Shares> soonest_of_any(const Shape& shape, Ms now) const;
    // What a node lacks for so many ranks of the gang from now until `end`, promises aside.
    enum class Lack : std::uint8_t { Nothing, Closed, NotAllowed, Reserved, Penalty, Memory, Cards, Cpus, Whole };
    Lack lack(const Shape& shape, std::uint32_t node, std::uint32_t ranks, Ms now = 0, Ms end = 0) const;
    // Cheap and never wrong about "no": whether the gang's cards are free at all.
    bool may_fit(const Shape& shape) const;

    std::uint32_t nodes() const { return static_cast<std::uint32_t>(nodes_.size()); }
    const Room& free(std::uint32_t node) const { return nodes_[node].free; }
    bool is_open(std::uint32_t node) const { return nodes_[node].open; }
    std::uint64_t free_cards() const { return free_cards_; }  // on open nodes
    std::uint32_t most_cards() const { return stride_ - 1; }  // of a node
    Ms first_promise() const { return first_promise_; }       // kNever: none
    std::uint32_t whole_free_nodes() const;                   // open, nobody on them
    bool is_empty(std::uint32_t node) const { return !nodes_[node].taken && nodes_[node].holds.empty(); }
    std::uint32_t rack_of(std::uint32_t node) const { return nodes_[node].rack; }
    // So many nodes or more make a gang large: it takes no node with a penalty.
    static constexpr std::uint32_t kLargeGangNodes = 32;

  private:
    struct NodeHold {
        std::uint32_t gang = 0;
        Room room;
        Ms end = kNever;
    };
    struct Promise {
        Room room;
        bool whole = false;
        Ms from = 0;
        Ms until = kNever;
    };
    struct Window {
        std::uint32_t reservation = 0;
        Ms from = 0;
        Ms until = kNever;
    };
    struct NodeState {
        Room all;
        Room free;
        std::uint32_t block = 0;  // domain numbers
        std::uint32_t rack = 0;
        std::uint32_t penalty = 0;
        bool open = true;
        bool taken = false;       // by something besides gangs
        std::vector<NodeHold> holds;  // the first to end first
        std::vector<Promise> promises;
    };
    struct Domain {
        Level level = Level::Cluster;
        std::uint32_t begin = 0;  // nodes
        std::uint32_t end = 0;
        std::vector<std::uint32_t> children;
    };
    struct Gang {
        Shares shares;
        Ms end = kNever;
    };
    // Equal nodes' worth of ranks: `nodes` nodes of `ranks` ranks each. A layout has one or two, most ranks first.
    struct Part {
        std::uint32_t nodes = 0;
        std::uint32_t ranks = 0;
    };
    using Layout = std::vector<Part>;
    // How nodes are looked at: now, or at a later time; with or without what is promised.
    struct Look {
        const Shape& shape;
        Ms from = 0;
        Ms end = kNever;
        bool later = false;
        bool ignore_promises = false;
        bool quickly = false;
        std::uint32_t most_penalty = 0;
        const std::vector<std::uint32_t>* avoid = nullptr;
    };
    class Search;  // search.cpp

    static std::vector<NodeHold>::iterator place_of(NodeState& node, Ms end);
    static Room room_of(const Shape& shape, const NodeState& node, std::uint32_t ranks);
    void give(std::uint32_t node, const Room& room, bool back);
    void tally(std::vector<std::uint32_t>& table, const NodeState& node, std::uint32_t from, std::uint32_t to, bool more) const;
    bool avoids_promised(const Look& look) const { return look.quickly && !look.ignore_promises && look.end > first_promise_; }
    std::uint32_t fits(const Look& look, std::uint32_t node) const;
    std::uint32_t ranks_in(const Look& look, const NodeState& node, const Room& room, bool whole) const;
    bool keeps_promises(const NodeState& node, const Room& room, Ms from, Ms end) const;
    static Room free_at(const NodeState& node, Ms at, bool& whole);
    bool is_kept_from(const Shape& shape, std::uint32_t node, Ms from, Ms end) const;
    bool is_large(const Shape& shape) const;
    std::optional<Shares> look_for(const Shape& shape, Look look, const std::vector<std::uint32_t>& avoid) const;
    Ms fits_from(const Shape& shape, std::uint32_t node, std::uint32_t ranks, Ms now) const;
    const std::vector<Ms>& ends() const;

    std::vector<NodeState> nodes_;
    std::vector<Domain> domains_;
    std::uint32_t blocks_ = 0;
    std::array<std::uint32_t, 4> largest_{};  // nodes of the largest domain of each level
    std::uint32_t stride_ = 1;               // most cards of a node, and one
    std::uint32_t most_cpus_ = 0;            // of a node
    std::uint32_t most_penalty_ = 0;
    std::vector<std::uint32_t> at_least_;    // [domain][cards]: open nodes with at least so many free
    std::vector<std::uint32_t> unpromised_;  // the same without nodes that have promises; kept while there are any
    std::uint64_t free_cards_ = 0;
    Ms first_promise_ = kNever;
    std::vector<std::uint32_t> promised_;    // nodes with promises
    std::vector<std::vector<Window>> windows_;  // by node; empty: no node has any
    std::vector<Gang> gangs_;
    std::vector<std::uint32_t> unused_;      // gang numbers
    mutable std::vector<Ms> ends_;           // of gangs and promises, sorted; empty = to be made
};

}  // namespace gangline::coordinator

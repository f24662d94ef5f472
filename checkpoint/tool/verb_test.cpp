// The verb as it is typed: exit codes, JSON, words of errors.

#include "checkpoint/tool/verb.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "checkpoint/tool/test_folder.h"

namespace gangline::checkpoint::tool {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TheVerb : public Folder {
  protected:
    std::vector<InMemory> in_memory_;  // of job 7
    struct Said {
        int code = 0;
        std::string out;
        std::string err;
        nlohmann::json json() const { return nlohmann::json::parse(out); }
    };
    Said run(std::vector<std::string> words) const {
        words.insert(words.begin(), "ckpt");
        std::vector<char*> argv;
        for (std::string& word : words) argv.push_back(word.data());
        testing::internal::CaptureStdout();
        testing::internal::CaptureStderr();
        Said said;
        said.code = ckpt_main(static_cast<int>(argv.size()), argv.data(), [this](const std::string& job) -> Result<FoundJob> {
            if (job == "7") return FoundJob{root_, in_memory_};
            return Error{Code::NotFound, "the coordinator knows no such job"};
        });
        std::fflush(stdout);
        said.out = testing::internal::GetCapturedStdout();
        said.err = testing::internal::GetCapturedStderr();
        return said;
    }
};

TEST_F(TheVerb, ExplainsItselfAndEachCommand) {
    EXPECT_EQ(run({}).code, 2);
    for (const char* command : {"ls", "show", "verify", "diff", "view", "export", "pin", "unpin", "prune"}) {
        EXPECT_THAT(run({"--help"}).out, HasSubstr(command));
        const Said help = run({command, "--help"});
        EXPECT_EQ(help.code, 0);
        EXPECT_THAT(help.out, HasSubstr("Examples:"));
        EXPECT_THAT(help.out, HasSubstr("--json"));
    }
}

TEST_F(TheVerb, ShowsWhatAJobHasInMemoryAlone) {
    in_memory_ = {{7, 40, 2, 4, true}, {7, 60, 2, 4, false}};
    std::filesystem::create_directories(root_);
    EXPECT_THAT(run({"ls", "7"}).out, testing::AllOf(HasSubstr("replicated: in memory, and on other nodes"), HasSubstr("snapshotted: in memory of its nodes alone")));
    write(kFirst);
    const auto list = run({"ls", "7", "--json"}).json()["checkpoints"];
    ASSERT_EQ(list.size(), 3u);
    EXPECT_EQ(list[0]["state"], "durable");
    EXPECT_EQ(list[1]["state"], "replicated");
    EXPECT_EQ(list[2]["state"], "snapshotted");
    EXPECT_EQ(list[2]["step"], 60);
    EXPECT_TRUE(list[2]["path"].is_null());
    EXPECT_THAT(run({"ls", root_}).out, testing::Not(HasSubstr("snapshotted"))) << "a folder knows of none";
}

TEST_F(TheVerb, AnswersInTextAndInJson) {
    write(kFirst);
    write(kSecond, 2, 5);
    EXPECT_THAT(run({"ls", root_}).out, HasSubstr("durable"));
    const auto list = run({"ls", "7", "--json"}).json();
    EXPECT_EQ(list["schema"], "gangline/1");
    ASSERT_EQ(list["checkpoints"].size(), 2u);
    EXPECT_EQ(list["checkpoints"][1]["step"], 200);
    EXPECT_EQ(list["checkpoints"][1]["shards"], 2);
    EXPECT_EQ(list["checkpoints"][1]["job"], 7);
    const auto shown = run({"show", root_, "100", "--json"}).json()["checkpoint"];
    EXPECT_EQ(shown["world"], 3);
    EXPECT_EQ(shown["tensors"][2]["name"], "model/matrix");
    EXPECT_EQ(shown["tensors"][2]["bytes"], 240);
    EXPECT_EQ(shown["tensors"][2]["boxes"].size(), 3u);
    EXPECT_THAT(run({"show", root_}).out, HasSubstr("model/matrix  float32        sliced      [12, 5]"));
    const Said differ = run({"diff", root_, "100", "200", "--json"});
    EXPECT_EQ(differ.code, 1);
    EXPECT_EQ(differ.json()["diff"]["differences"][0]["largest_absolute"]["value"], 4.0);
    EXPECT_EQ(run({"diff", root_, "100", root_, "100"}).code, 0);
    EXPECT_EQ(run({"diff", "7", path(kSecond)}).code, 0);
    EXPECT_EQ(run({"view", root_, "--json"}).json()["view"]["tensors"], 11);
    EXPECT_EQ(run({"export", root_, "--format", "npz", "-o", root_ + "/a.npz", "--json"}).json()["export"]["notes"].size(), 2u);
}

TEST_F(TheVerb, TakesSplittableAndDroppedStateForEachRanksOwn) {
    write(kFirst);
    for (const Policy policy : {Policy::Splittable, Policy::Drop}) {
        const std::string name(checkpoint::name_of(policy));
        std::filesystem::remove_all(path(kSecond));
        write(kSecond, 3, 1, [&](Model& model) { model.of("rng").policy = policy; });
        const auto rng = run({"show", root_, "200", "--json"}).json()["checkpoint"]["tensors"].back();
        EXPECT_EQ(rng["name"], "rng");
        EXPECT_EQ(rng["policy"], name);
        EXPECT_EQ(rng["bytes"], 36);  // three ranks' three numbers
        EXPECT_EQ(run({"diff", root_, "100", "200"}).code, 0);
        EXPECT_EQ(run({"view", root_, "200", "--json"}).json()["view"]["tensors"], 12);
        const std::string shard = path(kSecond, "shard-00002-of-00003.h5");
        if (has_python("h5py")) {
            EXPECT_TRUE(python("import h5py\nv = h5py.File('" + folder_name(kSecond) + "/view.h5', 'r')\n"
                               "assert [v['rank_state/%d/rng' % r][()].tolist() for r in range(3)] == [[r, r + 1, r + 2] for r in range(3)]\n"
                               "assert h5py.File('" + shard + "', 'r')['rng'].attrs['kind'] == b'" + name + "'\n"));
        }
        const std::string file = root_ + "/" + name + ".npz";
        const auto exported = run({"export", root_, "200", "--format", "npz", "-o", file, "--json"}).json()["export"];
        EXPECT_EQ(exported["tensors"], 9);
        EXPECT_THAT(exported["notes"][0].get<std::string>(), HasSubstr("as each rank has its own: rng"));
        EXPECT_EQ(run({"export", root_, "200", "--format", "npz", "-o", file, "--force", "--rank", "1", "--json"}).json()["export"]["tensors"], 10);
    }
}

TEST_F(TheVerb, ListsWhoNeedsEachCheckpointAndWhatIsProved) {
    for (const std::uint64_t step : {100u, 200u, 300u}) write({step, 1});
    ASSERT_TRUE(Store::open(root_)->write_rule({.last = 2}).ok());
    EXPECT_EQ(run({"pin", root_, "100", "--json"}).json()["pin"]["pinned"], true);
    {
        const Fd folder(::open(path(kSecond).c_str(), O_RDONLY | O_DIRECTORY));
        ASSERT_TRUE(mark_verified(real_disk(), folder.get(), ::time(nullptr)).ok());
    }
    const auto listed = run({"ls", root_, "--json"}).json()["checkpoints"];
    EXPECT_EQ(listed[0]["needed_by"], "pinned");
    EXPECT_EQ(listed[0]["pinned"], true);
    EXPECT_TRUE(listed[0]["verified_unix_s"].is_null() && listed[0]["metric"].is_null());
    EXPECT_EQ(listed[1]["needed_by"], "last, verified");
    EXPECT_TRUE(listed[1]["verified_unix_s"].is_number());
    const Said text = run({"ls", root_});
    EXPECT_THAT(text.out, HasSubstr("NEEDED BY"));
    EXPECT_THAT(text.out, HasSubstr("last, verified  verified "));
    EXPECT_EQ(run({"unpin", root_, "100"}).code, 0);
    EXPECT_EQ(run({"ls", root_, "--json"}).json()["checkpoints"][0]["needed_by"], "");
    EXPECT_EQ(run({"pin", root_, "700"}).code, 3);
}

TEST_F(TheVerb, VerifyExitsWithOneWhereBytesAreDamaged) {
    write(kFirst);
    write(kSecond);
    EXPECT_EQ(run({"verify", root_}).code, 0);
    flip_byte(path(kFirst, "shard-00002-of-00003.h5"), 64);
    EXPECT_EQ(run({"verify", root_}).code, 0);  // the newest
    const Said said = run({"verify", "--all", root_});
    EXPECT_EQ(said.code, 1);
    EXPECT_THAT(said.out, HasSubstr("shard-00002-of-00003.h5: block 0 (bytes 0 to"));
    const auto json = run({"verify", root_, "100", "--json"}).json()["verified"][0];
    EXPECT_EQ(json["good"], false);
    EXPECT_EQ(json["damages"][0]["block"], 0);
    flip_byte(path(kSecond, "MANIFEST"), 40);
    EXPECT_EQ(run({"verify", path(kSecond)}).code, 1);
    EXPECT_EQ(run({"diff", path(kSecond), path(kSecond)}).code, 3);
    EXPECT_EQ(run({"verify", root_, "300"}).code, 3);
}

TEST_F(TheVerb, PruneAsksForYesAndDeletesOnlyThen) {
    write(kFirst);
    write(kSecond);
    EXPECT_EQ(run({"prune", root_, "--keep", "1"}).code, 3);
    const Said dry = run({"prune", root_, "--keep", "1", "--dry-run", "--json"});
    EXPECT_EQ(dry.json()["prune"]["count"], 1);
    EXPECT_EQ(dry.json()["prune"]["done"], false);
    EXPECT_TRUE(fs::exists(path(kFirst)));
    EXPECT_EQ(run({"prune", root_, "--keep", "1", "--yes"}).code, 0);
    EXPECT_FALSE(fs::exists(path(kFirst)));
    EXPECT_TRUE(fs::exists(path(kSecond)));
    EXPECT_EQ(run({"prune", root_, "--keep", "1", "--yes"}).code, 0);
    EXPECT_TRUE(fs::exists(path(kSecond)));
}

TEST_F(TheVerb, NamesOptionValueAndWhatIsAllowed) {
    write(kFirst);
    struct Case {
        std::vector<std::string> words;
        int code;
        const char* said;
    };
    for (const Case& one : {Case{{"prune", root_, "--keep", "0"}, 2, "--keep '0': a whole number from 1"}, {{"prune", root_}, 2, "--keep N is missing"},
                            {{"prune", root_, "--keep", "1", "--every", "x"}, 2, "--every 'x'"}, {{"prune", path(kFirst), "--keep", "1"}, 2, "folder of all checkpoints"},
                            {{"export", root_, "--format", "pickle", "-o", "x"}, 2, "--format 'pickle': safetensors and npz"}, {{"export", root_}, 2, "--output FILE is missing"},
                            {{"export", root_, "-o", root_ + "/x", "--rank", "3"}, 2, "--rank 3: 0 to 2"}, {{"ls"}, 2, "0 places are given"},
                            {{"ls", root_, "--al"}, 2, "--al"}, {{"list"}, 2, "ls, show, verify"}, {{"diff", root_}, 2, "1 places are given"},
                            {{"show", "8"}, 3, "job 8: the coordinator knows no such job"}, {{"ls", root_ + "/none"}, 3, "No such file"}}) {
        const Said said = run(one.words);
        EXPECT_EQ(said.code, one.code) << said.err;
        EXPECT_THAT(said.err, HasSubstr(one.said));
    }
    EXPECT_EQ(run({"show", "8", "--json"}).json()["error"]["exit_code"], 3);
}

}  // namespace
}  // namespace gangline::checkpoint::tool

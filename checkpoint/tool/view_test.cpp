// The view, read by h5py, which knows nothing of us.

#include "checkpoint/tool/view.h"

#include <gmock/gmock.h>

#include "checkpoint/tool/test_folder.h"
#include "checkpoint/view.h"

namespace gangline::checkpoint::tool {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class AView : public Folder {
  protected:
    Result<Viewed> view(const std::string& output = "", Existing existing = Existing::Refuse) const {
        Opened opened = open(kFirst);
        return write_view(opened, output, existing);
    }
};

constexpr const char* kLook = R"(
import h5py, numpy as np, sys
f = h5py.File(FILE, "r")
assert {k: int(v) for k, v in f.attrs.items()} == {"job": 7, "step": 100, "attempt": 1, "world": 3}, dict(f.attrs)
m = f["model/matrix"]
assert m.is_virtual and m.shape == (12, 5) and m.dtype == np.float32 and m.attrs["kind"] == b"sliced"
assert all(not s.file_name.startswith("/") for s in m.virtual_sources()), m.virtual_sources()
assert (m[()] == np.arange(1, 61, dtype="f4").reshape(12, 5)).all(), m[()]
assert (f["model/wide"][()] == np.arange(24).reshape(3, 8) * 1000000007).all()
b = f["narrow/bf16"]
assert b.attrs["dtype"] == b"bfloat16" and b[()].astype("f4")[:2].tolist() == [1, -2] and np.isnan(b[()].astype("f4")[2]), b[()]
assert f["narrow/f16"][()].tolist() == [1, -2, 2.0**-24] and f["narrow/e4m3"][()].tolist() == [0x38, 0x7E, 0x7F]
assert f["mask"].dtype == bool and f["mask"][()].tolist() == [True, False, False, True]
assert f["position"].shape == () and f["position"][()] == 77 and f["empty"].shape == (0, 4)
assert [f["rank_state/%d/rng" % r][()].tolist() for r in range(3)] == [[r, r + 1, r + 2] for r in range(3)]
assert f["100%/a%b"][()].tolist() == [7.0]
)";

TEST_F(AView, ShowsGlobalTensorsToH5py) {
    if (!has_python("h5py")) GTEST_SKIP() << "python3-h5py is not installed";
    float seven = 7;
    write(kFirst, 3, 1, [&](Model& model) { model.add("100%/a%b", DType::F32, Policy::Replicated, {1}, {0}, {1}, &seven); });
    const auto viewed = view();
    ASSERT_TRUE(viewed.ok()) << viewed.error().message;
    EXPECT_EQ(viewed->tensors, 13u);
    EXPECT_TRUE(python("FILE = '" + folder_name(kFirst) + "/view.h5'\n" + kLook));
    fs::create_directories(root_ + "/other/place");
    ASSERT_TRUE(view(root_ + "/other/place/v.h5").ok());
    EXPECT_TRUE(python(std::string("FILE = 'other/place/v.h5'\n") + kLook));
    fs::rename(root_, root_ + "-moved");  // names are relative
    root_ += "-moved";
    EXPECT_TRUE(python("FILE = '" + folder_name(kFirst) + "/view.h5'\n" + kLook));
    fs::remove(path(kFirst, "shard-00001-of-00003.h5"));
    EXPECT_TRUE(python("import h5py, numpy as np\nm = h5py.File('" + folder_name(kFirst) +
                       "/view.h5', 'r')['model/matrix'][()]\nassert np.isnan(m[4:8]).all() and not np.isnan(m[:4]).any(), m\n"));
}

TEST_F(AView, ComesWithASaveUnlessItsPartsAreTooMany) {
    float seven = 7;
    std::vector<double> clocks{0.5, 1.5, 2.5};
    write(kFirst, 3, 1, [&](Model& model) {
        model.add("100%/a%b", DType::F32, Policy::Replicated, {1}, {0}, {1}, &seven);
        model.add("clock", DType::F64, Policy::PerRank, {}, {}, {}, &clocks[model.rank]);
    });
    const Store store = Store::open(root_).value();
    const Manifest manifest = store.open_published(kFirst)->manifest();
    EXPECT_EQ(mappings_of(manifest), 3 + 3 + 7 + 1 + 3 + 3);  // two sliced tensors, replicated ones, two of each rank's own
    ASSERT_TRUE(checkpoint::write_view(store, kFirst, mappings_of(manifest) - 1).ok());
    EXPECT_FALSE(fs::exists(path(kFirst, "view.h5")));
    ASSERT_TRUE(checkpoint::write_view(store, kFirst).ok());
    EXPECT_EQ(checkpoint::write_view(store, kSecond).error().code, Code::NotFound);
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(path(kFirst))) ++files;
    EXPECT_EQ(files, 5u);  // three shards, MANIFEST, view.h5: nothing temporary
    if (!has_python("h5py")) GTEST_SKIP() << "python3-h5py is not installed";
    EXPECT_TRUE(python("FILE = '" + folder_name(kFirst) + "/view.h5'\n" + kLook + "assert [f['rank_state/%d/clock' % r][()] for r in range(3)] == [0.5, 1.5, 2.5]\n"));
}

TEST_F(AView, ReplacesOnlyARegularFileAndOnlyWhenTold) {
    write(kFirst);
    ASSERT_TRUE(view().ok());
    EXPECT_TRUE(view().ok());  // its own place: what a save has made there is made anew
    ASSERT_TRUE(view(root_ + "/v.h5").ok());
    EXPECT_EQ(view(root_ + "/v.h5").error().code, Code::Refused);
    EXPECT_THAT(view(root_ + "/v.h5").error().message, HasSubstr("--force"));
    EXPECT_TRUE(view(root_ + "/v.h5", Existing::Replace).ok());
    std::ofstream(root_ + "/precious") << "words";
    fs::create_symlink("precious", root_ + "/link.h5");
    EXPECT_THAT(view(root_ + "/link.h5", Existing::Replace).error().message, HasSubstr("not a regular file"));
    EXPECT_EQ(read(root_ + "/precious"), "words");
    EXPECT_THAT(view(path(kFirst, "shard-00000-of-00003.h5"), Existing::Replace).error().message, HasSubstr("a file of a checkpoint"));
    EXPECT_EQ(view(root_ + "/none/v.h5").error().code, Code::InvalidArgument);
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(path(kFirst))) ++files;
    EXPECT_EQ(files, 5u);  // three shards, MANIFEST, view.h5: nothing temporary
}

TEST_F(AView, IsRefusedWhereAShardIsMissing) {
    write(kFirst);
    fs::remove(path(kFirst, "shard-00001-of-00003.h5"));
    EXPECT_EQ(view().error().code, Code::Damaged);
    EXPECT_FALSE(fs::exists(path(kFirst, "view.h5")));
}

}  // namespace
}  // namespace gangline::checkpoint::tool

// Exports, read by NumPy and by the published format.

#include "checkpoint/tool/export.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/tool/test_folder.h"

namespace gangline::checkpoint::tool {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class AnExport : public Folder {
  protected:
    Result<Exported> exported(Format format, const std::string& name, std::optional<std::uint32_t> rank = {}, Existing existing = Existing::Refuse) const {
        Opened opened = open(kFirst);
        return export_checkpoint(opened, {format, root_ + "/" + name, rank, existing});
    }
};

TEST_F(AnExport, IsSafetensorsByItsPublicFormat) {
    write(kFirst, 3);
    const auto done = exported(Format::Safetensors, "model.safetensors");
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(done->tensors, 9u);
    EXPECT_EQ(done->bytes, fs::file_size(root_ + "/model.safetensors"));
    ASSERT_EQ(done->notes.size(), 1u);
    EXPECT_THAT(done->notes[0], HasSubstr("rng; --rank N includes"));
    EXPECT_TRUE(python(R"(
import json, struct
d = open("model.safetensors", "rb").read()
n, = struct.unpack("<Q", d[:8])
h = json.loads(d[8:8 + n]); data = d[8 + n:]
assert n % 8 == 0 and d[8:9] == b"{"
meta = h.pop("__metadata__")
assert meta["step"] == "100" and all(isinstance(v, str) for v in meta.values())
assert "rng" not in h and len(h) == 9
spans = sorted(t["data_offsets"] for t in h.values())
assert spans[0][0] == 0 and spans[-1][1] == len(data) and all(a[1] == b[0] for a, b in zip(spans, spans[1:])), spans
def take(name, dtype, shape):
    t = h[name]; assert t["dtype"] == dtype and t["shape"] == shape, t
    return data[t["data_offsets"][0]:t["data_offsets"][1]]
size = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "F16": 2, "BF16": 2}
for t in h.values(): assert t["data_offsets"][0] % size.get(t["dtype"], 1) == 0
assert struct.unpack("<60f", take("model/matrix", "F32", [12, 5])) == tuple(float(i) for i in range(1, 61))
assert struct.unpack("<24q", take("model/wide", "I64", [3, 8])) == tuple(i * 1000000007 for i in range(24))
assert take("narrow/bf16", "BF16", [3]) == struct.pack("<3H", 0x3F80, 0xC000, 0x7FC0)
assert take("narrow/f16", "F16", [3]) == struct.pack("<3H", 0x3C00, 0xC000, 1)
assert take("narrow/e4m3", "F8_E4M3", [3]) == b"\x38\x7e\x7f" and take("narrow/e5m2", "F8_E5M2", [3]) == b"\x3c\x7b\x7c"
assert take("mask", "BOOL", [4]) == b"\x01\x00\x00\x01" and struct.unpack("<Q", take("position", "U64", [])) == (77,)
assert take("empty", "F64", [0, 4]) == b""
)"));
}

TEST_F(AnExport, IsAnNpzThatNumPyLoads) {
    if (!has_python("numpy")) GTEST_SKIP() << "python3-numpy is not installed";
    write(kFirst, 3);
    const auto done = exported(Format::Npz, "all.npz", 2);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(done->tensors, 10u);
    ASSERT_EQ(done->notes.size(), 1u);
    EXPECT_THAT(done->notes[0], HasSubstr("narrow/bf16, narrow/e4m3, narrow/e5m2"));
    EXPECT_TRUE(python(R"(
import numpy as np, zipfile
assert zipfile.ZipFile("all.npz").testzip() is None
f = np.load("all.npz", allow_pickle=False)
assert len(f.files) == 10
m = f["model/matrix"]
assert m.dtype == np.dtype("<f4") and (m == np.arange(1, 61).reshape(12, 5)).all() and m.flags.c_contiguous
assert (f["model/wide"] == np.arange(24).reshape(3, 8) * 1000000007).all()
assert f["narrow/bf16"].dtype == np.uint16 and f["narrow/bf16"].tolist() == [0x3F80, 0xC000, 0x7FC0]
assert f["narrow/f16"].tolist() == [1, -2, 2.0**-24] and f["narrow/e5m2"].tolist() == [0x3C, 0x7B, 0x7C]
assert f["mask"].dtype == bool and f["mask"].tolist() == [True, False, False, True]
assert f["position"].shape == () and f["position"] == 77 and f["empty"].shape == (0, 4) and f["rng"].tolist() == [2, 3, 4]
)"));
}

TEST_F(AnExport, IsTheSameFileWhateverTheNumberOfRanks) {
    write(kFirst, 1);
    ASSERT_TRUE(exported(Format::Npz, "one.npz").ok());
    ASSERT_TRUE(exported(Format::Safetensors, "one.safetensors").ok());
    fs::remove_all(path(kFirst));
    write(kFirst, 5);
    ASSERT_TRUE(exported(Format::Npz, "five.npz").ok());
    ASSERT_TRUE(exported(Format::Safetensors, "five.safetensors").ok());
    EXPECT_EQ(read(root_ + "/one.npz"), read(root_ + "/five.npz"));
    EXPECT_EQ(read(root_ + "/one.safetensors"), read(root_ + "/five.safetensors"));
}

TEST_F(AnExport, RefusesAnExistingFileAnImpossibleRankAndDamage) {
    write(kFirst, 3);
    std::ofstream(root_ + "/there") << "words";
    EXPECT_THAT(exported(Format::Npz, "there").error().message, HasSubstr("it exists; --force replaces it"));
    EXPECT_EQ(read(root_ + "/there"), "words");
    EXPECT_TRUE(exported(Format::Npz, "there", {}, Existing::Replace).ok());
    EXPECT_THAT(exported(Format::Npz, "x", 3).error().message, HasSubstr("--rank 3: 0 to 2 are possible"));
    flip_byte(path(kFirst, "shard-00001-of-00003.h5"), 200);
    EXPECT_EQ(exported(Format::Safetensors, "x").error().code, Code::Damaged);
    EXPECT_FALSE(fs::exists(root_ + "/x"));
}

TEST_F(AnExport, LeavesNothingBehindWhereThereIsNoRoom) {
    write(kFirst, 1);
    const pid_t child = ::fork();
    if (child == 0) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{100, 100};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const auto done = exported(Format::Npz, "x.npz");
        ::_exit(!done.ok() && done.error().code == Code::NoSpace && done.error().message.find("free some space") != std::string::npos ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(root_)) ++files;
    EXPECT_EQ(files, 1u);
}

TEST_F(AnExport, RefusesNamesThatTheFormatCannotHold) {
    float value = 1;
    write(kFirst, 1, 1, [&](Model& model) { model.add("__metadata__", DType::F32, Policy::Replicated, {}, {}, {}, &value); });
    EXPECT_EQ(exported(Format::Safetensors, "x").error().code, Code::Refused);
    EXPECT_TRUE(exported(Format::Npz, "x").ok());
    fs::remove_all(path(kFirst));
    write(kFirst, 1, 1, [&](Model& model) { model.add("\xFF", DType::F32, Policy::Replicated, {}, {}, {}, &value); });
    EXPECT_THAT(exported(Format::Npz, "y").error().message, HasSubstr("not UTF-8"));
}

}  // namespace
}  // namespace gangline::checkpoint::tool

#include "cuda/attention_case.h"
#include "ops/cuda/kernels/attention_decode.h"

namespace mimo::cuda::test {
namespace {

// Memory for partial results, NaN everywhere but in the counters.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaSuccess, cudaMalloc(&data_, bytes + 256));
    EXPECT_EQ(cudaSuccess, cudaMemset(data_, 0xff, bytes + 256));
    EXPECT_EQ(cudaSuccess, cudaMemset(data_, 0, kDecodeBarrierBytes));
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    std::vector<unsigned char> behind(256);
    EXPECT_EQ(cudaSuccess,
              cudaMemcpy(behind.data(), static_cast<char*>(data_) + bytes_, 256, cudaMemcpyDeviceToHost));
    for (const unsigned char byte : behind) EXPECT_EQ(0xff, byte) << "written behind the workspace";
    cudaFree(data_);
  }
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

std::vector<float> run(AttentionCase& problem) {
  problem.upload();
  EXPECT_TRUE(attention_decode_supports(problem.args()));
  const Workspace workspace(attention_decode_workspace(problem.args()));
  attention_decode(problem.args(), workspace.get(), nullptr);
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
  return problem.download();
}

// Weights and results are rounded to bf16: half a unit of 2^-7 each.
constexpr double kTolerance = 2.02 / 256;

AttentionShape random_shape(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int> from) { return *(from.begin() + random() % from.size()); };
  AttentionShape a;
  a.kv_heads = pick({1, 1, 2, 3, 4, 8});
  a.q_heads = a.kv_heads * pick({1, 2, 3, 5, 8, 8, 16, 16});
  a.qk_dim = pick({192, 192, 128});
  a.page_size = pick({1, 3, 7, 16, 64, 128, 256});
  a.fp8 = random() % 2 == 0;
  a.bidirectional = random() % 4 == 0;
  a.window = pick({0, 0, 1, 5, 128, 128, 600});
  a.anchor = random() % 3 == 0;
  a.sinks = random() % 2 == 0;
  const int count = static_cast<int>(random() % 5) + 1;
  for (int s = 0; s < count; ++s) {
    SequenceShape q;
    q.rows = pick({0, 1, 1, 2, 4, 5, 8, 16});
    q.position = pick({0, 1, 15, 63, 64, 100, 127, 128, 300, 500, 777});
    q.first_key = random() % 4 == 0 ? static_cast<int>(random() % static_cast<unsigned>(q.position + 1)) : 0;
    a.sequences.push_back(q);
  }
  a.max_sequences = count + static_cast<int>(random() % 3);
  return a;
}

TEST(AttentionDecode, RandomShapesAgreeWithDouble) {
  std::mt19937 random(11);
  double worst = 0;
  int bad = 0;
  for (unsigned i = 0; i < (small_cases() ? 5 : 150) && bad < 12; ++i) {
    AttentionCase problem(random_shape(random), i);
    problem.reference();
    const double error = worst_error(problem, run(problem));
    EXPECT_LE(error, kTolerance) << i << ": " << problem.shape().text();
    bad += !(error <= kTolerance);
    worst = std::max(worst, error);
  }
  std::printf("worst error over magnitude: %.2e\n", worst);
}

// Row r of sequence `s` of the results of a problem; rows of nobody lie between sequences.
std::vector<float> row_of(const AttentionCase& problem, const std::vector<float>& out, int s, int r) {
  const std::size_t width = static_cast<std::size_t>(problem.shape().q_heads * problem.shape().v_dim);
  const std::size_t begin = static_cast<std::size_t>(problem.row_begin(s) + r) * width;
  return {out.begin() + static_cast<std::ptrdiff_t>(begin),
          out.begin() + static_cast<std::ptrdiff_t>(begin + width)};
}

// A token verified among others gets the bits that it would get alone, also where the split of the context changes
// (132 SMs, 4 KV heads, 2 sequences: at 66 tiles) and where a new tile or chunk begins.
TEST(AttentionDecode, RowsDoNotKnowTheirNeighbours) {
  struct Setting {
    int q_heads, kv_heads, window, position;
  };
  for (const Setting& t : {Setting{64, 4, 0, 4219}, Setting{64, 4, 0, 700}, Setting{8, 1, 0, 1083},
                           Setting{64, 8, 128, 1083}, Setting{64, 8, 128, 100}, Setting{32, 4, 0, 60}}) {
    for (const bool fp8 : {false, true}) {
      AttentionShape a;
      a.q_heads = t.q_heads;
      a.kv_heads = t.kv_heads;
      a.window = t.window;
      a.sinks = t.window > 0;
      a.fp8 = fp8;
      a.loud = false;
      a.sequences = {{2, 300, 0}, {8, t.position, 0}};
      AttentionCase together(a, 3);
      const std::vector<float> all = run(together);
      for (int r = 0; r<8; r += t.position> 4000 ? 2 : 1) {
        AttentionShape one = a;
        one.sequences = {{1, 55, 0}, {1, t.position + r, 0}};
        AttentionCase alone(one, 3);
        const std::vector<float> out = run(alone);
        ASSERT_EQ(row_of(alone, out, 1, 0), row_of(together, all, 1, r)) << a.text() << " row " << r;
      }
    }
  }
}

TEST(AttentionDecode, MoreSequencesThanOneLaunchTakes) {
  for (const bool fp8 : {false, true}) {
    AttentionShape a;
    a.q_heads = 8;
    a.kv_heads = 1;
    a.fp8 = fp8;
    for (int s = 0; s < 300; ++s) a.sequences.push_back({s % 7 == 3 ? 0 : 1 + s % 2, (s * 37) % 200, 0});
    AttentionCase problem(a, 9);
    problem.reference();
    EXPECT_LE(worst_error(problem, run(problem)), kTolerance);
  }
}

// One graph serves steps with other sequences, lengths and pages.
TEST(AttentionDecode, GraphsAreReplayedWithOtherSequences) {
  for (int setting = 0; setting < 4; ++setting) {
    const int window = setting % 2 * 128;
    const Overlap overlap = setting < 2 ? Overlap::kNone : Overlap::kRead;
    AttentionShape a;
    a.q_heads = 32;
    a.kv_heads = 2;
    a.page_size = 16;
    a.window = window;
    a.sinks = window > 0;
    a.max_sequences = 5;
    a.max_rows = 8;
    a.max_keys = 3000;
    a.sequences = {{8, 2900, 0}, {8, 2700, 0}, {8, 2500, 0}, {8, 2400, 0}, {8, 2300, 0}};
    AttentionCase problem(a, 1);
    problem.upload();
    AttentionArgs bound = problem.args();
    bound.sequences.total_rows = 45;
    const Workspace workspace(attention_decode_workspace(bound));
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamCreate(&stream));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 3; ++i) attention_decode(bound, workspace.get(), stream, overlap);
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    std::mt19937 random(5);
    for (unsigned i = 0; i < 6; ++i) {
      a.sequences.clear();
      for (int s = 0; s < 5; ++s) {
        a.sequences.push_back(
            {static_cast<int>(random() % 9), static_cast<int>(random() % (i % 2 ? 2200 : 150)), 0});
      }
      problem.change(a, i);
      problem.upload();
      ASSERT_EQ(bound.q, problem.args().q);
      ASSERT_EQ(bound.kv.k, problem.args().kv.k);
      ASSERT_EQ(bound.sequences.pages, problem.args().sequences.pages);
      ASSERT_EQ(bound.out, problem.args().out);
      CUDA_OK(cudaGraphLaunch(exec, stream));
      CUDA_OK(cudaStreamSynchronize(stream));
      problem.reference();
      EXPECT_LE(worst_error(problem, problem.download()), kTolerance) << problem.shape().text();
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

TEST(AttentionDecode, OtherShapesAreRefused) {
  AttentionShape a;
  a.sequences = {{1, 5, 0}};
  AttentionCase problem(a, 1);
  problem.upload();
  AttentionArgs args = problem.args();
  EXPECT_TRUE(attention_decode_supports(args));
  args.sequences.max_rows = 17;
  EXPECT_FALSE(attention_decode_supports(args));
  EXPECT_THROW(attention_decode(args, nullptr, nullptr), std::invalid_argument);
  args = problem.args();
  args.kv.qk_dim = 64;
  EXPECT_FALSE(attention_decode_supports(args));
  args = problem.args();
  args.type = ActType::kF32;
  EXPECT_FALSE(attention_decode_supports(args));
}

}  // namespace
}  // namespace mimo::cuda::test

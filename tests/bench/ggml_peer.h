// llama.cpp's matrix product of one quantized type, from the shared libraries of an installed llama-cpp-python, to
// compare with it in the same run. This file repeats only declarations of ggml's public C interface (ggml.h,
// ggml-cpu.h).
#pragma once
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace nibble::bench {

// Products x * w^T over copies of one weight, all in one graph: as in decoding, threads synchronize once per product.
class GgmlProduct {
 public:
  static constexpr int kTq2 = 35;  // GGML_TYPE_TQ2_0

  // directory holds libggml-base.so and libggml-cpu.so. w [n, k] and x [m, k] are f32. Exits if the libraries lack a
  // needed symbol: without the peer there is nothing to compare.
  GgmlProduct(const std::string& directory, int type, const std::vector<float>& w, const std::vector<float>& x,
              std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t copies, int threads)
      : base_(Open(directory + "/libggml-base.so")), cpu_(Open(directory + "/libggml-cpu.so")) {
    Get<void()>(cpu_, "ggml_cpu_init")();
    const auto row_size = Get<std::size_t(int, std::int64_t)>(base_, "ggml_row_size");
    const std::size_t weight_bytes = row_size(type, k) * static_cast<std::size_t>(n);
    const std::size_t x_bytes = static_cast<std::size_t>(m * k) * 4, y_bytes = static_cast<std::size_t>(m * n) * 4;
    // With room for ggml's own objects: 4 KiB for each copy, 16 MiB for the graph.
    const std::size_t memory =
        static_cast<std::size_t>(copies) * (weight_bytes + y_bytes + 4096) + x_bytes + (std::size_t{16} << 20);
    context_ = Get<void*(InitParams)>(base_, "ggml_init")({memory, nullptr, false});
    const auto new_2d = Get<void*(void*, int, std::int64_t, std::int64_t)>(base_, "ggml_new_tensor_2d");
    const auto data = Get<void*(void*)>(base_, "ggml_get_data");
    const auto mul_mat = Get<void*(void*, void*, void*)>(base_, "ggml_mul_mat");
    const auto expand = Get<void(void*, void*)>(base_, "ggml_build_forward_expand");
    const auto quantize =
        Get<std::size_t(int, const float*, void*, std::int64_t, std::int64_t, std::int64_t, const float*)>(
            base_, "ggml_quantize_chunk");
    void* input = new_2d(context_, kF32, k, m);
    std::copy(x.begin(), x.end(), static_cast<float*>(data(input)));
    graph_ = Get<void*(void*, std::size_t, bool)>(base_, "ggml_new_graph_custom")(
        context_, static_cast<std::size_t>(2 * copies + 16), false);
    void* product = nullptr;
    for (std::int64_t i = 0; i < copies; ++i) {
      void* weight = new_2d(context_, type, k, n);
      if (i == 0) {
        quantize(type, w.data(), data(weight), 0, n, k, nullptr);
        first_ = data(weight);
      } else {
        std::copy_n(static_cast<const char*>(first_), weight_bytes, static_cast<char*>(data(weight)));
      }
      product = mul_mat(context_, weight, input);
      expand(graph_, product);
    }
    y_ = static_cast<const float*>(data(product));
    plan_ = Get<Plan(void*, int, void*)>(cpu_, "ggml_graph_plan")(graph_, threads, nullptr);
    work_.resize(plan_.work_size + 64);
    plan_.work_data = work_.data();
    compute_ = Get<int(void*, Plan*)>(cpu_, "ggml_graph_compute");
  }
  ~GgmlProduct() { Get<void(void*)>(base_, "ggml_free")(context_); }
  GgmlProduct(const GgmlProduct&) = delete;
  GgmlProduct& operator=(const GgmlProduct&) = delete;

  bool Run() { return compute_(graph_, &plan_) == 0; }
  const float* y() const { return y_; }  // [m, n] of the last copy

 private:
  static constexpr int kF32 = 0;
  struct InitParams {
    std::size_t mem_size;
    void* mem_buffer;
    bool no_alloc;
  };
  struct Plan {
    std::size_t work_size;
    std::uint8_t* work_data;
    int n_threads;
    void* threadpool;
    void* abort_callback;
    void* abort_data;
    std::uint8_t later[64];  // fields that newer versions append
  };

  static void* Open(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle != nullptr) return handle;
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(2);
  }
  template <typename F>
  static F* Get(void* handle, const char* name) {
    void* symbol = dlsym(handle, name);
    if (symbol != nullptr) return reinterpret_cast<F*>(symbol);
    std::fprintf(stderr, "missing symbol %s\n", name);
    std::exit(2);
  }

  void* base_;
  void* cpu_;
  void* context_ = nullptr;
  void* graph_ = nullptr;
  void* first_ = nullptr;
  const float* y_ = nullptr;
  Plan plan_{};
  int (*compute_)(void*, Plan*) = nullptr;
  std::vector<std::uint8_t> work_;
};

}  // namespace nibble::bench

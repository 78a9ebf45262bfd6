// What the emulated operations compute: rounding, sums, comparisons, copies.
#include "wrong.h"

namespace native {
namespace {

// Runs on `in`, and gives what the kernel leaves in the first elements of a buffer.
template <class T, class Body> std::vector<T> compute(Body body, std::size_t count) {
  std::vector<T> result(count);
  emulator::launch(1, [&] {
    TPipe pipe;
    TBuf<> work, out;
    pipe.InitBuffer(work, 32768);
    pipe.InitBuffer(out, 32768);
    body(work, out.Get<T>());
    for (std::size_t i = 0; i < count; ++i) result[i] = emulator::get<T>(out.Get<T>(), static_cast<std::int64_t>(i));
  });
  return result;
}
template <class T> LocalTensor<T> filled(const LocalTensor<T>& t, const std::vector<T>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) t.SetValue(static_cast<std::uint32_t>(i), values[i]);
  PipeBarrier<PIPE_ALL>();
  return t;
}

void test_half() {
  bool same = true;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto h = static_cast<std::uint16_t>(bits);
    const double value = decode_half(h);
    const float wide = emulator::half_to_float(h);
    same = same && (std::isnan(value) ? std::isnan(wide) : static_cast<double>(wide) == value);
    if (!std::isnan(value)) same = same && emulator::float_to_half(wide) == h;
  }
  CHECK(same);
  // Between two neighbours: the middle goes to the even one, everything else to the nearer one.
  bool nearest = true;
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = decode_half(static_cast<std::uint16_t>(bits));
    const double high = decode_half(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    const auto even = static_cast<std::uint16_t>(bits + (bits & 1));
    nearest = nearest && emulator::float_to_half(middle) == even && emulator::float_to_half(-middle) == (even | 0x8000);
    nearest = nearest && emulator::float_to_half(std::nextafter(middle, 0.0F)) == bits;
    nearest = nearest && emulator::float_to_half(std::nextafter(middle, 1e9F)) == bits + 1;
  }
  CHECK(nearest);
  CHECK(emulator::float_to_half(65519.99F) == 0x7bff && emulator::float_to_half(65520) == 0x7c00);
  CHECK(emulator::float_to_half(1e-30F) == 0 && emulator::float_to_half(INFINITY) == 0x7c00);
  CHECK(std::isnan(emulator::half_to_float(emulator::float_to_half(NAN))));
  CHECK(emulator::float_to_bfloat16(emulator::bits_float(0x3f808000)) == 0x3f80);
  CHECK(emulator::float_to_bfloat16(emulator::bits_float(0x3f818000)) == 0x3f82);
  CHECK(emulator::float_to_bfloat16(emulator::bits_float(0x3f808001)) == 0x3f81);
  CHECK(emulator::float_to_bfloat16(3.4e38F) == 0x7f80 && (emulator::float_to_bfloat16(NAN) & 0x7fff) == 0x7fc0);
}

void test_rounding_of_operations() {
  // 2048 + 1 is no half, and neither is what is left when it is rounded at the end only.
  const auto sums = compute<half>(
      [](TBuf<>& work, LocalTensor<half> out) {
        LocalTensor<half> t = filled(work.Get<half>(), {2048.0F, 1.0F});
        Adds(out, t, half(1.0F), 2);
        PipeBarrier<PIPE_V>();
        Adds(out, out, half(1.0F), 2);
        PipeBarrier<PIPE_V>();
        Muls(out, out, half(1.0009765625F), 2);
      },
      2);
  CHECK(sums[0] == 2050.0F && sums[1] == 3.00390625F - 0.001953125F + 0.001953125F);
  const auto mixed = compute<float>(
      [](TBuf<>& work, LocalTensor<float> out) {
        LocalTensor<half> t = filled(work.Get<half>(), {1.5F, 3.0F});
        Duplicate(out, 1.0F, 2);
        PipeBarrier<PIPE_V>();
        Axpy(out, t, half(2.0F), 2);
        PipeBarrier<PIPE_V>();
        MulAddDst(out, t, t, 2);
      },
      2);
  CHECK(mixed[0] == 1 + 3 + 2.25F && mixed[1] == 1 + 6 + 9);
  CHECK_WRONG("Cast: float to bfloat16 needs a rounding mode", auto t = k.ready();
              Cast(k.b.Get<bfloat16_t>(), t, RoundMode::CAST_NONE, 8));
  CHECK_WRONG("Cast: half to float is CAST_NONE", auto t = k.ready();
              Cast(k.b.Get<float>(), t.ReinterpretCast<half>(), RoundMode::CAST_RINT, 8));
  CHECK_WRONG("Cast: bfloat16 to float is CAST_NONE", auto t = k.ready();
              Cast(k.b.Get<float>(), t.ReinterpretCast<bfloat16_t>(), RoundMode::CAST_RINT, 8));
  CHECK_WRONG("Cast: float to int32 needs a rounding mode", auto t = k.ready();
              Cast(k.b.Get<std::int32_t>(), t, RoundMode::CAST_NONE, 8));
  const auto floats = compute<float>(
      [](TBuf<>& work, LocalTensor<float> out) {
        LocalTensor<float> t = filled<float>(work.Get<float>(), {-2.25F, 4.0F, 0.5F, 9.0F});
        Abs(out, t, 4);
        PipeBarrier<PIPE_V>();
        Sqrt(out, out, 4);
        PipeBarrier<PIPE_V>();
        Div(out, t, out, 4);
        PipeBarrier<PIPE_V>();
        Maxs(out, out, -1.0F, 4);
        PipeBarrier<PIPE_V>();
        Mins(out, out, 2.5F, 4);
      },
      4);
  CHECK(floats[0] == -1 && floats[1] == 2 && floats[2] == 0.5F / std::sqrt(0.5F) && floats[3] == 2.5F);
  const auto whole = compute<std::int32_t>(
      [](TBuf<>& work, LocalTensor<std::int32_t> out) {
        LocalTensor<float> t = filled<float>(work.Get<float>(), {2.5F, -2.5F, 3.5F, 1e20F});
        Cast(out, t, RoundMode::CAST_RINT, 4);
      },
      4);
  CHECK(whole[0] == 2 && whole[1] == -2 && whole[2] == 4 && whole[3] == INT32_MAX);
}

void test_sums() {
  std::vector<float> x(200);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1.0F / static_cast<float>(i + 1);
  const auto tree = [&](std::size_t first, std::size_t count, std::size_t width) {
    std::vector<float> level(width, 0.0F);
    for (std::size_t i = 0; i < count; ++i) level[i] = x[first + i];
    for (; level.size() > 1;) {
      std::vector<float> next;
      for (std::size_t i = 0; i < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
      level = next;
    }
    return level[0];
  };
  const auto total = compute<float>(
      [&](TBuf<>& work, LocalTensor<float> out) {
        LocalTensor<float> t = filled(work.Get<float>(), x);
        ReduceSum(out, t, out[64], 200);
      },
      1);
  CHECK(total[0] == ((tree(0, 64, 64) + tree(64, 64, 64)) + tree(128, 64, 64)) + tree(192, 8, 64));
  const auto repeats = compute<float>(
      [&](TBuf<>& work, LocalTensor<float> out) {
        LocalTensor<float> t = filled(work.Get<float>(), x);
        Duplicate(out, 0.0F, 64);
        PipeBarrier<PIPE_V>();
        WholeReduceSum(out, t, 40, 3, 2, 1, 8);
        BlockReduceSum(out[16], t, 2, 64, 1, 1, 8);
      },
      32);
  CHECK(repeats[0] == tree(0, 40, 64) && repeats[2] == tree(64, 40, 64) && repeats[4] == tree(128, 40, 64));
  CHECK(repeats[1] == 0 && repeats[16] == tree(0, 8, 8) && repeats[31] == tree(120, 8, 8));
  // Two tensors by repeats, with a mask of bits, and with a source that stands still.
  const auto masked = compute<float>(
      [&](TBuf<>& work, LocalTensor<float> out) {
        LocalTensor<float> t = filled(work.Get<float>(), x);
        std::uint64_t odd[2] = {0xaaaaaaaaaaaaaaaaU, 0};
        Duplicate(out, 0.0F, 128);
        PipeBarrier<PIPE_V>();
        Add(out, t, t, odd, 2, BinaryRepeatParams(1, 1, 1, 8, 8, 0));
      },
      128);
  CHECK(masked[0] == 0 && masked[1] == x[1] + x[1] && masked[64] == 0 && masked[65] == x[65] + x[1]);
  CHECK_WRONG("ReduceSum: a count from 1, got 0", auto t = k.ready(); auto s = k.b.Get<float>();
              ReduceSum(s, t, s[8], 0));
  CHECK_WRONG("BlockReduceSum: 1 to 255 repeats, got 0", auto t = k.ready();
              BlockReduceSum(k.b.Get<float>(), t, 0, 64, 1, 1, 8));
  CHECK_WRONG("ReduceSum: elements 0 to 7 of a tensor of 0", auto t = k.ready();
              ReduceSum(k.b.Get<float>(), t, t[256], 8));
  CHECK_WRONG("Muls: reads memory that nothing has written", auto t = k.ready(); auto s = k.b.Get<float>();
              ReduceSum(s, t, s[8], 8); PipeBarrier<PIPE_V>(); Muls(s[8], s[8], 1.0F, 1));
}

void test_selections() {
  const auto chosen = compute<float>(
      [](TBuf<>& work, LocalTensor<float> out) {
        LocalTensor<float> t = filled(work.Get<float>(), std::vector<float>(64, 3.0F));
        t.SetValue(9, 5.0F);
        t.SetValue(10, NAN);
        PipeBarrier<PIPE_ALL>();
        LocalTensor<std::uint8_t> bits = work.Get<std::uint8_t>()[4096];
        CompareScalar(bits, t, 3.0F, CMPMODE::EQ, 64);
        PipeBarrier<PIPE_ALL>();
        CHECK(bits.GetValue(0) == 255 && bits.GetValue(1) == 0xf9);
        Select(out, bits, t, -1.0F, SELMODE::VSEL_TENSOR_SCALAR_MODE, 11);
      },
      11);
  CHECK(chosen[8] == 3 && chosen[9] == -1 && chosen[10] == -1);
  CHECK_WRONG("Select: a scalar is VSEL_TENSOR_SCALAR_MODE", auto t = k.ready(); Select(
                  k.b.Get<float>(), t.ReinterpretCast<std::uint8_t>(), t, 1.0F, SELMODE::VSEL_TENSOR_TENSOR_MODE, 8));
  CHECK_WRONG("Select: a count from 1, got 0", auto t = k.ready();
              Select(k.b.Get<float>(), t.ReinterpretCast<std::uint8_t>(), t, t, SELMODE::VSEL_TENSOR_TENSOR_MODE, 0));
  CHECK_WRONG("Select: two tensors are VSEL_TENSOR_TENSOR_MODE", auto t = k.ready();
              Select(k.b.Get<float>(), t.ReinterpretCast<std::uint8_t>(), t, t, SELMODE::VSEL_TENSOR_SCALAR_MODE, 8));
}

}  // namespace

void test_emulated_values() {
  test_half();
  test_rounding_of_operations();
  test_sums();
  test_selections();
}

}  // namespace native

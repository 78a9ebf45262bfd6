#include "ops/strided_copy.h"

#include "cpu/image_rows.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kPiece = 4096;  // elements of a row that a thread copies at once
struct Sixteen {
  std::uint64_t low, high;
};

// Where an item of all axes but one or two begins, in the source and in what is written.
struct Place {
  std::int64_t from = 0, to = 0;
};

template <class T> class Copy {
 public:
  Copy(const void* source, int axes, const std::int64_t* shape, const std::int64_t* strides, void* to)
      : source_(static_cast<const T*>(source)),
        to_(static_cast<T*>(to)),
        axes_(axes),
        shape_(shape),
        strides_(strides) {
    // The axis along which the source is nearest to being in order.
    for (int axis = 0; axis < axes; ++axis) {
      size_ *= shape[axis];
      if (near_ < 0 || magnitude(strides[axis]) <= magnitude(strides[near_])) near_ = axis;
    }
  }
  void run(int threads) const {
    if (axes_ == 0)
      *to_ = *source_;
    else if (near_ == axes_ - 1)
      rows(threads);
    else
      tiles(threads);
  }

 private:
  static std::int64_t magnitude(std::int64_t stride) { return stride < 0 ? -stride : stride; }

  Place place(std::int64_t item, int without) const {
    Place at;
    std::int64_t step = 1;
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      const std::int64_t n = shape_[axis];
      if (axis != without && axis != axes_ - 1) {
        at.from += item % n * strides_[axis];
        at.to += item % n * step;
        item /= n;
      }
      step *= n;
    }
    return at;
  }

  void rows(int threads) const {
    const std::int64_t n = shape_[axes_ - 1], stride = strides_[axes_ - 1], pieces = quotient_up(n, kPiece);
    on_threads(threads, size_, size_ / n * pieces, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t item = begin; item < end; ++item) {
        const Place at = place(item / pieces, axes_ - 1);
        const std::int64_t first = item % pieces * kPiece, count = smaller(kPiece, n - first);
        const T* from = source_ + at.from + first * stride;
        T* to = to_ + at.to + first;
        if (stride == 1)
          std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
        else
          for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
      }
    });
  }

  // Squares of the last axis and the near one, which stay in the first cache: both sides are walked in runs of a side.
  // A square is turned in memory of its own, since lines a power of two apart drive each other out.
  void tiles(int threads) const {
    constexpr std::int64_t kSide = sizeof(T) > 4 ? 32 : 64;
    const std::int64_t last = shape_[axes_ - 1], near = shape_[near_];
    const std::int64_t across = quotient_up(last, kSide), squares = quotient_up(near, kSide) * across;
    std::int64_t step = 1;
    for (int axis = near_ + 1; axis < axes_; ++axis) step *= shape_[axis];
    on_threads(threads, size_, size_ / (last * near) * squares, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) T turned[kSide * kSide];
      for (std::int64_t item = begin; item < end; ++item) {
        const Place at = place(item / squares, near_);
        const std::int64_t i = item % squares / across * kSide, j = item % across * kSide;
        const std::int64_t height = smaller(kSide, near - i), width = smaller(kSide, last - j);
        square<kSide>(source_ + at.from + i * strides_[near_] + j * strides_[axes_ - 1], height, width, turned);
        T* to = to_ + at.to + i * step + j;
        for (std::int64_t n = 0; n < height; ++n, to += step)
          std::memcpy(to, turned + n * kSide, static_cast<std::size_t>(width) * sizeof(T));
      }
    });
  }

  template <std::int64_t kSide> void square(const T* from, std::int64_t height, std::int64_t width, T* to) const {
    const std::int64_t near = strides_[near_], far = strides_[axes_ - 1];
    if constexpr (sizeof(T) == sizeof(float)) {
      if (near == 1) {
        floats<kSide>(reinterpret_cast<const float*>(from), far, height, width, reinterpret_cast<float*>(to));
        return;
      }
    }
    for (std::int64_t l = 0; l < width; ++l) {
      for (std::int64_t i = 0; i < height; ++i) to[i * kSide + l] = from[i * near + l * far];
    }
  }

  template <std::int64_t kSide>
  static void floats(const float* from, std::int64_t far, std::int64_t height, std::int64_t width, float* to) {
    const auto memory = reinterpret_cast<std::uintptr_t>(from);
    for (std::int64_t first = 0; first < width; first += 4) {
      for (std::int64_t l = first; l < first + 4; ++l) {
        for (std::int64_t i = 0; i < height; i += 16) {  // of the square after this one
          const auto ahead = static_cast<std::uintptr_t>((kSide + l) * far + i);
          __builtin_prefetch(reinterpret_cast<const void*>(memory + ahead * sizeof(float)));
        }
      }
      turn([=](std::int64_t l) BOOST_EXT_INLINE_LAMBDA { return from + (first + l) * far; }, smaller(4, width - first),
           height, to + first, kSide);
    }
  }

  const T* source_;
  T* to_;
  int axes_, near_ = -1;
  const std::int64_t *shape_, *strides_;
  std::int64_t size_ = 1;
};

}  // namespace

void strided_copy(const Context& context, const void* source, std::int64_t item, int axes, const std::int64_t* shape,
                  const std::int64_t* strides, void* to) {
  const auto copy = [&](auto element) {
    Copy<decltype(element)>(source, axes, shape, strides, to).run(context.threads);
  };
  switch (item) {
    case 1:
      return copy(std::uint8_t{});
    case 2:
      return copy(std::uint16_t{});
    case 4:
      return copy(std::uint32_t{});
    case 8:
      return copy(std::uint64_t{});
    default:
      return copy(Sixteen{});
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA

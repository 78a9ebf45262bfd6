#include "ops/strided_copy.h"

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kTile = 16;  // elements that lie one after the other in the source: a cache line of four bytes
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
    const std::int64_t n = shape_[axes_ - 1], stride = strides_[axes_ - 1], pieces = (n + kPiece - 1) / kPiece;
    on_threads(threads, size_, size_ / n * pieces, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t item = begin; item < end; ++item) {
        const Place at = place(item / pieces, axes_ - 1);
        const std::int64_t first = item % pieces * kPiece, count = n - first < kPiece ? n - first : kPiece;
        const T* from = source_ + at.from + first * stride;
        T* to = to_ + at.to + first;
        if (stride == 1)
          std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
        else
          for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
      }
    });
  }

  // The last axis and the near one, tile by tile, so that a line of the cache is read once.
  void tiles(int threads) const {
    const std::int64_t last = shape_[axes_ - 1], near = shape_[near_], strips = (near + kTile - 1) / kTile;
    const std::int64_t far_stride = strides_[axes_ - 1], near_stride = strides_[near_];
    std::int64_t step = 1;
    for (int axis = near_ + 1; axis < axes_; ++axis) step *= shape_[axis];
    on_threads(threads, size_, size_ / (last * near) * strips, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t item = begin; item < end; ++item) {
        const Place at = place(item / strips, near_);
        const std::int64_t first = item % strips * kTile, count = near - first < kTile ? near - first : kTile;
        const T* from = source_ + at.from + first * near_stride;
        T* to = to_ + at.to + first * step;
        for (std::int64_t j = 0; j < last; j += kTile) {
          const std::int64_t width = last - j < kTile ? last - j : kTile;
          for (std::int64_t i = 0; i < count; ++i) {
            for (std::int64_t l = 0; l < width; ++l)
              to[i * step + j + l] = from[i * near_stride + (j + l) * far_stride];
          }
        }
      }
    });
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

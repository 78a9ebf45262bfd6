// Tiles of images, and the transforms of F(2 x 2, 3 x 3): a tile of 2 x 2 outputs sees a window of 4 x 4 inputs.
//   Y = A^T [ (G g G^T) o (B^T d B) ] A      outputs Y, weights g, inputs d; o multiplies element by element
// Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016. All are sums and halves.
#pragma once

#include "cpu/bfloat16_products.h"
#include "cpu/image_rows.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// Lanes of two vectors in a row, at even and at odd places; and back.
#if defined(__AVX512F__)
BOOST_EXT_INLINE Vf evens(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
BOOST_EXT_INLINE Vf odds(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
BOOST_EXT_INLINE Vf first_pairs(Vf even, Vf odd) {
  return __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
BOOST_EXT_INLINE Vf last_pairs(Vf even, Vf odd) {
  return __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif defined(__AVX2__)
BOOST_EXT_INLINE Vf evens(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
BOOST_EXT_INLINE Vf odds(Vf a, Vf b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }
BOOST_EXT_INLINE Vf first_pairs(Vf even, Vf odd) {
  return __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
}
BOOST_EXT_INLINE Vf last_pairs(Vf even, Vf odd) {
  return __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
}
#else
BOOST_EXT_INLINE Vf evens(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6); }
BOOST_EXT_INLINE Vf odds(Vf a, Vf b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7); }
BOOST_EXT_INLINE Vf first_pairs(Vf even, Vf odd) { return __builtin_shufflevector(even, odd, 0, 4, 1, 5); }
BOOST_EXT_INLINE Vf last_pairs(Vf even, Vf odd) { return __builtin_shufflevector(even, odd, 2, 6, 3, 7); }
#endif

// B^T d B, in place.
BOOST_EXT_INLINE void transform_inputs(Vf& a, Vf& b, Vf& c, Vf& d) {
  const Vf second = b;
  a = a - c;
  b = second + c;
  c = c - second;
  d = second - d;
}
BOOST_EXT_INLINE void transform_inputs(Vf (&d)[4][4]) {
  BOOST_EXT_EACH_OF(4, b) transform_inputs(d[0][b], d[1][b], d[2][b], d[3][b]);
  BOOST_EXT_EACH_OF(4, a) transform_inputs(d[a][0], d[a][1], d[a][2], d[a][3]);
}

// G g G^T.
BOOST_EXT_INLINE void transform_weights(const Vf (&g)[3][3], Vf (&u)[4][4]) {
  Vf half[4][3];
  BOOST_EXT_EACH_OF(3, b) {
    const Vf ends = g[0][b] + g[2][b];
    half[0][b] = g[0][b];
    half[1][b] = 0.5f * (ends + g[1][b]);
    half[2][b] = 0.5f * (ends - g[1][b]);
    half[3][b] = g[2][b];
  }
  BOOST_EXT_EACH_OF(4, a) {
    const Vf ends = half[a][0] + half[a][2];
    u[a][0] = half[a][0];
    u[a][1] = 0.5f * (ends + half[a][1]);
    u[a][2] = 0.5f * (ends - half[a][1]);
    u[a][3] = half[a][2];
  }
}

// A^T m A.
BOOST_EXT_INLINE void transform_outputs(const Vf (&m)[4][4], Vf (&y)[2][2]) {
  Vf half[2][4];
  BOOST_EXT_EACH_OF(4, b) {
    half[0][b] = m[0][b] + m[1][b] + m[2][b];
    half[1][b] = m[1][b] - m[2][b] - m[3][b];
  }
  BOOST_EXT_EACH_OF(2, a) {
    y[a][0] = half[a][0] + half[a][1] + half[a][2];
    y[a][1] = half[a][1] - half[a][2] - half[a][3];
  }
}

// The transposed transforms, for the gradient of the weights: A dy A^T, and G^T s G.
BOOST_EXT_INLINE void transform_output_gradients(const Vf (&dy)[2][2], Vf (&p)[4][4]) {
  Vf half[4][2];
  BOOST_EXT_EACH_OF(2, b) {
    half[0][b] = dy[0][b];
    half[1][b] = dy[0][b] + dy[1][b];
    half[2][b] = dy[0][b] - dy[1][b];
    half[3][b] = -dy[1][b];
  }
  BOOST_EXT_EACH_OF(4, a) {
    p[a][0] = half[a][0];
    p[a][1] = half[a][0] + half[a][1];
    p[a][2] = half[a][0] - half[a][1];
    p[a][3] = -half[a][1];
  }
}
BOOST_EXT_INLINE void transform_weight_gradients(const Vf (&s)[4][4], Vf (&g)[3][3]) {
  Vf half[3][4];
  BOOST_EXT_EACH_OF(4, b) {
    const Vf middle = 0.5f * (s[1][b] + s[2][b]);
    half[0][b] = s[0][b] + middle;
    half[1][b] = 0.5f * (s[1][b] - s[2][b]);
    half[2][b] = middle + s[3][b];
  }
  BOOST_EXT_EACH_OF(3, a) {
    const Vf middle = 0.5f * (half[a][1] + half[a][2]);
    g[a][0] = half[a][0] + middle;
    g[a][1] = 0.5f * (half[a][1] - half[a][2]);
    g[a][2] = middle + half[a][3];
  }
}

// Those of one image after the other, row by row, without regard to channels.
struct Tiles {
  Tiles(std::int64_t images, std::int64_t oh, std::int64_t ow)
      : down((oh + 1) / 2), across((ow + 1) / 2), of_image(down * across), count(images * of_image) {}
  std::int64_t down, across, of_image, count;

  // body(image, row, column, tiles, done) for the parts of `some` tiles that lie in one row of an image each.
  template <class Body> void each_row(std::int64_t first, std::int64_t some, Body body) const {
    std::int64_t image = first / of_image, row = first % of_image / across, column = first % across;
    for (std::int64_t done = 0; done < some;) {
      const std::int64_t here = smaller(across - column, some - done);
      body(image, row, column, here, done);
      done += here;
      column = 0;
      if (++row == down) {
        row = 0;
        ++image;
      }
    }
  }
};

// The windows of up to `most` tiles in one channel of images, N x N each: the inputs that a tile sees (4), or its
// outputs (2). What is outside of an image is zero. Tiles beyond the last hold any numbers.
template <int N> class Windows {
 public:
  Windows(const Tiles& tiles, std::int64_t h, std::int64_t w, std::int64_t top, std::int64_t left, std::int64_t most)
      : tiles_(tiles),
        h_(h),
        w_(w),
        top_(top),
        left_(left),
        pitch_(2 * tiles.across + N - 2),
        seen_(smaller(w, pitch_ - left)),
        line_(2 * most + kLanes),
        image_((2 * tiles.down + N - 2) * pitch_ + kLanes),
        lines_(N * kHalves * line_) {}

  // Of the images of one channel, `stride` apart.
  void read(const float* channel, std::int64_t stride, std::int64_t first, std::int64_t some) {
    std::int64_t last = -1;
    const std::int64_t pitch = pitch_, line = line_;
    tiles_.each_row(
        first, some,
        [&](std::int64_t image, std::int64_t row, std::int64_t column, std::int64_t here, std::int64_t done) {
          // Two of four rows are those of the tiles above.
          for (std::int64_t r = 2 * row + (image == last ? N - 2 : 0); r < 2 * row + N; ++r) {
            const std::int64_t y = r - top_;
            if (y < 0 || y >= h_) continue;
            copy_row(channel + image * stride + y * w_, seen_, image_.get() + r * pitch_ + left_);
          }
          last = image;
          const float* from = image_.get() + 2 * row * pitch_ + 2 * column;
          BOOST_EXT_EACH_OF(N, a) {
            BOOST_EXT_EACH_OF(kHalves, b) {
              float* to = lines_.get() + (a * kHalves + b) * line + 2 * done;
              // Beyond the end there is room, and what comes next is written later.
              for (std::int64_t i = 0; i < 2 * here; i += kWidth) {
                put(to + i, load_floats(from + a * pitch + 2 * b + i));
                BOOST_EXT_NO_CALL();
              }
            }
          }
        });
  }

  // d[a][b]: the element at (a, b) of the windows of kWidth tiles.
  BOOST_EXT_INLINE void take(std::int64_t tile, Vf (&d)[N][N]) {
    BOOST_EXT_EACH_OF(N, a) {
      BOOST_EXT_EACH_OF(kHalves, b) {
        const float* from = lines_.get() + (a * kHalves + b) * line_ + 2 * tile;
        const Vf low = load_floats(from), high = load_floats(from + kWidth);
        d[a][2 * b] = evens(low, high);
        d[a][2 * b + 1] = odds(low, high);
      }
    }
  }

 private:
  static constexpr int kHalves = N / 2;  // pairs of columns
  const Tiles tiles_;
  std::int64_t h_, w_, top_, left_, pitch_, seen_, line_;
  Zeros<float> image_, lines_;
};

}  // namespace boost_ext::cpu::BOOST_EXT_ISA

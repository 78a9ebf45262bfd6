#include "ops/batch_norm.h"

#include "cpu/parallel.h"

// A plane of sixteen elements or more is loaded sixteen by sixteen, and the last sixteen once more where some are left:
// what was seen before is not added again, and written again with the same bits. Smaller planes are columns of a matrix
// with a row for each sample, and a lane is a column.
namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kPasses = 3;
constexpr std::int64_t kBlock = 4096;          // elements that stay in the first cache from one pass to the next
constexpr std::int64_t kAdded = 1024;          // elements that are added in float32, at most 32 in a lane
constexpr std::int64_t kRows = 64;             // the same for rows
constexpr std::int64_t kColumns = 4 * kLanes;  // of several channels that are a thread's at a time
constexpr float kLane[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct Moments {
  double count = 0, mean = 0, squares = 0;  // squares of differences to the mean

  // Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", eq. 2.1. The
  // elements of a block are given less `near`: their sum, and the sum of their squares.
  BOOST_EXT_INLINE void add(double size, float near, double rest, double of_squares) {
    const double off = rest / size, centered = of_squares - off * rest;
    const double both = count + size, apart = near + off - mean;
    mean += apart * (size / both);
    squares += (centered < 0 ? 0 : centered) + apart * apart * (count * size / both);
    count = both;
  }
};

// What y or dx is of a channel's x: (x - mean) scale + beta, scale (dy - of_all - (x - mean) of_each).
struct Scaling {
  float mean, scale, beta;
};
struct GradientScaling {
  float mean, scale, of_all, of_each;
};

BOOST_EXT_INLINE Scaling finish(const BatchNorm& b, std::int64_t c, const Moments& m) {
  const double keep = b.momentum, unbiased = m.squares / (m.count - 1);
  b.mean[c] = static_cast<float>(m.mean);
  b.rstd[c] = static_cast<float>(1 / square_root(m.squares / m.count + b.epsilon));
  b.moving_mean[c] = static_cast<float>(keep * b.moving_mean[c] + (1 - keep) * m.mean);
  b.moving_variance[c] = static_cast<float>(keep * b.moving_variance[c] + (1 - keep) * unbiased);
  return {b.mean[c], b.gamma[c] * b.rstd[c], b.beta[c]};
}

// With the sums over the channel of dy and of dy (x - mean).
BOOST_EXT_INLINE GradientScaling finish(const BatchNormGradient& b, std::int64_t c, double of_dy, double of_products) {
  const double size = static_cast<double>(b.samples) * static_cast<double>(b.plane), rstd = b.rstd[c];
  b.dbeta[c] = static_cast<float>(of_dy);
  b.dgamma[c] = static_cast<float>(of_products * rstd);
  return {b.mean[c], b.gamma[c] * b.rstd[c], static_cast<float>(of_dy / size),
          static_cast<float>(of_products * rstd * rstd / size)};
}

// sums[s] += the sum over i < n of terms(i)[s], which takes the sixteen elements from i on.
template <int kSums, class Terms> BOOST_EXT_INLINE void add_plane(D (&sums)[kSums], std::int64_t n, Terms terms) {
  constexpr int kSide = kAccumulators / kSums;
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t stop = n - i < kAdded ? n : i + kAdded;
    F some[kSums][kSide] = {};
    for (; i + kSide * kLanes <= stop; i += kSide * kLanes) {
      for (int u = 0; u < kSide; ++u) {
        F term[kSums];
        terms(i + u * kLanes, term);
        for (int s = 0; s < kSums; ++s) some[s][u] = some[s][u] + term[s];
      }
    }
    for (; i < stop; i += kLanes) {
      const bool is_whole = i + kLanes <= stop;
      F term[kSums];
      terms(is_whole ? i : stop - kLanes, term);
      const F seen = all(static_cast<float>(is_whole ? 0 : i + kLanes - stop));
      for (int s = 0; s < kSums; ++s) some[s][0] = some[s][0] + where_less(load(kLane), seen, F{}, term[s]);
    }
    for (int s = 0; s < kSums; ++s) {
      for (int u = 1; u < kSide; ++u) some[s][0] = some[s][0] + some[s][u];
      sums[s] = sums[s] + widen(some[s][0]);
    }
    i = stop;
  }
}

template <class Value> BOOST_EXT_INLINE void write_plane(float* to, std::int64_t n, Value value) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, value(i));
  if (i < n) store(to + n - kLanes, value(n - kLanes));
}

// body(offset, planes, count) for the blocks of a channel: whole planes, or parts of one.
template <class Body>
BOOST_EXT_INLINE void each_block(std::int64_t samples, std::int64_t stride, std::int64_t plane, Body body) {
  const std::int64_t together = plane < kBlock ? kBlock / plane : 1;
  for (std::int64_t r = 0; r < samples; r += together) {
    const std::int64_t planes = samples - r < together ? samples - r : together;
    for (std::int64_t i = 0; i < plane; i += kBlock)
      body(r * stride + i, planes, plane - i < kBlock ? plane - i : kBlock);
  }
}

Moments moments(const float* x, std::int64_t samples, std::int64_t stride, std::int64_t plane) {
  Moments m;
  each_block(samples, stride, plane, [&](std::int64_t offset, std::int64_t planes, std::int64_t count) {
    const auto size = static_cast<double>(planes * count);
    D total[1] = {};
    for (std::int64_t r = 0; r < planes; ++r) {
      const float* from = x + offset + r * stride;
      add_plane(total, count, [&](std::int64_t i, F(&term)[1]) BOOST_EXT_INLINE_LAMBDA { term[0] = load(from + i); });
    }
    const auto near = static_cast<float>(sum(total[0]) / size);
    D rest[2] = {};
    for (std::int64_t r = 0; r < planes; ++r) {
      const float* from = x + offset + r * stride;
      add_plane(rest, count, [&](std::int64_t i, F(&term)[2]) BOOST_EXT_INLINE_LAMBDA {
        term[0] = load(from + i) - all(near);
        term[1] = term[0] * term[0];
      });
    }
    m.add(size, near, sum(rest[0]), sum(rest[1]));
  });
  return m;
}

// The planes of a channel, the last ones first: they are still in the cache.
void normalize(const BatchNorm& b, std::int64_t c) {
  const std::int64_t stride = b.channels * b.plane;
  const float* x = b.x + c * b.plane;
  const Scaling s = finish(b, c, moments(x, b.samples, stride, b.plane));
  const F mean = all(s.mean), beta = all(s.beta);
  for (std::int64_t r = b.samples - 1; r >= 0; --r) {
    const float* from = x + r * stride;
    write_plane(b.y + c * b.plane + r * stride, b.plane,
                [&](std::int64_t i) BOOST_EXT_INLINE_LAMBDA { return s.scale * (load(from + i) - mean) + beta; });
  }
}

void differentiate(const BatchNormGradient& b, std::int64_t c) {
  const std::int64_t stride = b.channels * b.plane;
  const float *dy = b.dy + c * b.plane, *x = b.x + c * b.plane;
  const F mean = all(b.mean[c]);
  D sums[2] = {};
  for (std::int64_t r = 0; r < b.samples; ++r) {
    const float *of = dy + r * stride, *from = x + r * stride;
    add_plane(sums, b.plane, [&](std::int64_t i, F(&term)[2]) BOOST_EXT_INLINE_LAMBDA {
      term[0] = load(of + i);
      term[1] = term[0] * (load(from + i) - mean);
    });
  }
  const GradientScaling s = finish(b, c, sum(sums[0]), sum(sums[1]));
  const F of_all = all(s.of_all);
  for (std::int64_t r = b.samples - 1; r >= 0; --r) {
    const float *of = dy + r * stride, *from = x + r * stride;
    write_plane(b.dx + c * b.plane + r * stride, b.plane, [&](std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
      return s.scale * (load(of + i) - of_all - s.of_each * (load(from + i) - mean));
    });
  }
}

// The columns of some channels.
struct Strip {
  std::int64_t first, channels, plane, width;
  std::int64_t begin() const { return first * plane; }
};

// body(io, j) for every sixteen columns of a strip.
template <class Body> BOOST_EXT_INLINE void each_group(std::int64_t width, Body body) {
  if (width < kLanes) return body(Part{width}, std::int64_t{0});
  for (std::int64_t j = 0; j + kLanes <= width; j += kLanes) body(Full{}, j);
  if (width % kLanes > 0) body(Full{}, width - kLanes);
}

// of_channels[s][c] <- the sum over rows and the columns of a channel of terms(io, r, j)[s].
template <int kSums, class Terms>
BOOST_EXT_INLINE void strip_sums(const Strip& strip, std::int64_t rows, double (&of_channels)[kSums][kColumns],
                                 Terms terms) {
  double columns[kSums][kColumns];
  each_group(strip.width, [&](auto io, std::int64_t j) BOOST_EXT_INLINE_LAMBDA {
    D sums[kSums] = {};
    for (std::int64_t r = 0; r < rows;) {
      const std::int64_t stop = rows - r < kRows ? rows : r + kRows;
      F some[kSums] = {};
      for (; r < stop; ++r) {
        F term[kSums];
        terms(io, r, j, term);
        for (int s = 0; s < kSums; ++s) some[s] = some[s] + term[s];
      }
      for (int s = 0; s < kSums; ++s) sums[s] = sums[s] + widen(some[s]);
    }
    for (int s = 0; s < kSums; ++s) store(columns[s] + j, sums[s]);
  });
  for (int s = 0; s < kSums; ++s) {
    for (std::int64_t c = 0; c < strip.channels; ++c) {
      double total = 0;
      for (std::int64_t i = 0; i < strip.plane; ++i) total += columns[s][c * strip.plane + i];
      of_channels[s][c] = total;
    }
  }
}

// A number of each channel for each of its columns.
BOOST_EXT_INLINE void spread(const Strip& strip, std::int64_t c, float value, float (&columns)[kColumns]) {
  for (std::int64_t i = 0; i < strip.plane; ++i) columns[c * strip.plane + i] = value;
}

void normalize(const BatchNorm& b, const Strip& strip) {
  const std::int64_t stride = b.channels * b.plane;
  const float* x = b.x + strip.begin();
  const auto size = static_cast<double>(b.samples * b.plane);
  double total[1][kColumns], rest[2][kColumns];
  float near[kColumns] = {}, mean[kColumns] = {}, scale[kColumns] = {}, beta[kColumns] = {};
  strip_sums(strip, b.samples, total,
             [&](auto io, std::int64_t r, std::int64_t j, F(&term)[1])
                 BOOST_EXT_INLINE_LAMBDA { term[0] = io.load(x + r * stride + j); });
  for (std::int64_t c = 0; c < strip.channels; ++c) spread(strip, c, static_cast<float>(total[0][c] / size), near);
  strip_sums(strip, b.samples, rest, [&](auto io, std::int64_t r, std::int64_t j, F(&term)[2]) BOOST_EXT_INLINE_LAMBDA {
    term[0] = io.load(x + r * stride + j) - load(near + j);
    term[1] = term[0] * term[0];
  });
  for (std::int64_t c = 0; c < strip.channels; ++c) {
    Moments m;
    m.add(size, near[c * strip.plane], rest[0][c], rest[1][c]);
    const Scaling s = finish(b, strip.first + c, m);
    spread(strip, c, s.mean, mean);
    spread(strip, c, s.scale, scale);
    spread(strip, c, s.beta, beta);
  }
  for (std::int64_t r = 0; r < b.samples; ++r) {
    each_group(strip.width, [&](auto io, std::int64_t j) BOOST_EXT_INLINE_LAMBDA {
      const F centered = io.load(x + r * stride + j) - load(mean + j);
      io.store(b.y + strip.begin() + r * stride + j, load(scale + j) * centered + load(beta + j));
    });
  }
}

void differentiate(const BatchNormGradient& b, const Strip& strip) {
  const std::int64_t stride = b.channels * b.plane;
  const float *dy = b.dy + strip.begin(), *x = b.x + strip.begin();
  double sums[2][kColumns];
  float mean[kColumns] = {}, scale[kColumns] = {}, of_all[kColumns] = {}, of_each[kColumns] = {};
  for (std::int64_t c = 0; c < strip.channels; ++c) spread(strip, c, b.mean[strip.first + c], mean);
  strip_sums(strip, b.samples, sums, [&](auto io, std::int64_t r, std::int64_t j, F(&term)[2]) BOOST_EXT_INLINE_LAMBDA {
    term[0] = io.load(dy + r * stride + j);
    term[1] = term[0] * (io.load(x + r * stride + j) - load(mean + j));
  });
  for (std::int64_t c = 0; c < strip.channels; ++c) {
    const GradientScaling s = finish(b, strip.first + c, sums[0][c], sums[1][c]);
    spread(strip, c, s.scale, scale);
    spread(strip, c, s.of_all, of_all);
    spread(strip, c, s.of_each, of_each);
  }
  for (std::int64_t r = 0; r < b.samples; ++r) {
    each_group(strip.width, [&](auto io, std::int64_t j) BOOST_EXT_INLINE_LAMBDA {
      const F h = io.load(dy + r * stride + j) - load(of_all + j);
      const F centered = io.load(x + r * stride + j) - load(mean + j);
      io.store(b.dx + strip.begin() + r * stride + j, load(scale + j) * (h - load(of_each + j) * centered));
    });
  }
}

// each(c) for the channels, or each(strip).
template <class Op, class Each> void on_channels(int threads, const Op& b, std::int64_t weight, Each each) {
  const std::int64_t work = weight * b.samples * b.channels * b.plane;
  if (b.plane >= kLanes) {
    return on_threads(threads, work, b.channels, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) each(c);
    });
  }
  const std::int64_t together = kColumns / b.plane;
  on_threads(threads, work, (b.channels + together - 1) / together, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t first = k * together, left = b.channels - first, channels = left < together ? left : together;
      each(Strip{first, channels, b.plane, channels * b.plane});
    }
  });
}

}  // namespace

void batch_norm(const Context& context, const BatchNorm& b) {
  on_channels(context.threads, b, kPasses, [&](auto which) { normalize(b, which); });
}

void batch_norm_gradient(const Context& context, const BatchNormGradient& b) {
  on_channels(context.threads, b, 2 * kPasses, [&](auto which) { differentiate(b, which); });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA

#include "ops/batch_norm.h"

#include "cpu/parallel.h"

// A plane of more than sixteen elements is loaded sixteen by sixteen, and the last sixteen once more where some are
// left: what was seen before is not added again, and written again with the same bits. Smaller planes are columns of a
// matrix with a row for each sample, and a lane is a column.
namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kPasses = 3;
constexpr std::int64_t kBlock = 4096;          // elements that stay in the first cache from one pass to the next
constexpr std::int64_t kLead = 2048;           // elements from what is asked for to what is used
constexpr std::int64_t kAdded = 1024;          // elements that are added in float32, at most 64 in a lane
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

// Where the planes of a channel lie, and which one to ask for while one is read or written: the CPU sees no stream
// where planes lie apart. Behind the last plane comes the first one of the next channel.
struct Planes {
  std::int64_t samples, stride, size, lead;

  template <class Op>
  explicit Planes(const Op& b) : samples(b.samples), stride(b.channels * b.plane), size(b.plane), lead(kLead / size) {
    if (lead < 1) lead = 1;
    if (lead > samples) lead = samples;
  }
  std::int64_t next(std::int64_t r) const {
    return r + lead < samples ? lead * stride : (lead - samples) * stride + size;
  }
  std::int64_t before(std::int64_t r) const { return r >= lead ? -lead * stride : (samples - lead) * stride + size; }
};
template <int kWrite> BOOST_EXT_INLINE void fetch(const float* p, std::int64_t away) {
  const auto at = reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(away) * sizeof(float);
  __builtin_prefetch(reinterpret_cast<const void*>(at), kWrite, 2);
}

// sums[s] += the sum over r < planes and i < n of terms(r, i)[s], which takes the sixteen elements from i on.
template <int kSums, class Terms>
BOOST_EXT_INLINE void add_planes(D (&sums)[kSums], std::int64_t planes, std::int64_t n, Terms terms) {
  constexpr int kSide = kAccumulators / kSums;
  const std::int64_t together = n < kAdded / 2 ? kAdded / 2 / n : 1;
  for (std::int64_t first = 0; first < planes; first += together) {
    const std::int64_t last = planes - first < together ? planes : first + together;
    for (std::int64_t begin = 0; begin < n; begin += kAdded) {
      const std::int64_t stop = n - begin < kAdded ? n : begin + kAdded;
      F some[kSums][kSide] = {};
      for (std::int64_t r = first; r < last; ++r) {
        std::int64_t i = begin;
        for (; i + kSide * kLanes <= stop; i += kSide * kLanes) {
          for (int u = 0; u < kSide; ++u) {
            F term[kSums];
            terms(r, i + u * kLanes, term);
            for (int s = 0; s < kSums; ++s) some[s][u] = some[s][u] + term[s];
          }
        }
        for (; i < stop; i += kLanes) {
          const bool is_whole = i + kLanes <= stop;
          const F seen = all(static_cast<float>(is_whole ? 0 : i + kLanes - stop));
          F term[kSums];
          terms(r, is_whole ? i : stop - kLanes, term);
          for (int s = 0; s < kSums; ++s) some[s][0] = some[s][0] + where_less(load(kLane), seen, F{}, term[s]);
        }
      }
      for (int s = 0; s < kSums; ++s) {
        for (int u = 1; u < kSide; ++u) some[s][0] = some[s][0] + some[s][u];
        sums[s] = sums[s] + widen(some[s][0]);
      }
    }
  }
}

template <class Value> BOOST_EXT_INLINE void write_plane(float* to, std::int64_t n, Value value) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, value(i));
  if (i < n) store(to + n - kLanes, value(n - kLanes));
}

// body(first, planes, offset, count) for the blocks of a channel: whole planes, or parts of one.
template <class Body> BOOST_EXT_INLINE void each_block(std::int64_t samples, std::int64_t plane, Body body) {
  const std::int64_t together = plane < kBlock ? kBlock / plane : 1;
  for (std::int64_t r = 0; r < samples; r += together) {
    const std::int64_t planes = samples - r < together ? samples - r : together;
    for (std::int64_t i = 0; i < plane; i += kBlock) body(r, planes, i, plane - i < kBlock ? plane - i : kBlock);
  }
}

Moments moments(const float* x, const Planes& of) {
  Moments m;
  each_block(of.samples, of.size, [&](std::int64_t first, std::int64_t planes, std::int64_t offset, std::int64_t n) {
    const float* block = x + first * of.stride + offset;
    const auto size = static_cast<double>(planes * n);
    D total[1] = {}, rest[2] = {};
    add_planes(total, planes, n, [&](std::int64_t r, std::int64_t i, F(&term)[1]) BOOST_EXT_INLINE_LAMBDA {
      const float* from = block + r * of.stride + i;
      fetch<0>(from, of.next(first + r));
      term[0] = load(from);
    });
    const auto near = static_cast<float>(sum(total[0]) / size);
    add_planes(rest, planes, n, [&](std::int64_t r, std::int64_t i, F(&term)[2]) BOOST_EXT_INLINE_LAMBDA {
      term[0] = load(block + r * of.stride + i) - all(near);
      term[1] = term[0] * term[0];
    });
    m.add(size, near, sum(rest[0]), sum(rest[1]));
  });
  return m;
}

// The last planes first: they are still in the cache.
void normalize(const BatchNorm& b, std::int64_t c) {
  const Planes planes(b);
  const float* x = b.x + c * b.plane;
  const Scaling s = finish(b, c, moments(x, planes));
  const F mean = all(s.mean), beta = all(s.beta);
  for (std::int64_t r = b.samples - 1; r >= 0; --r) {
    const float* from = x + r * planes.stride;
    float* to = b.y + c * b.plane + r * planes.stride;
    const std::int64_t away = planes.before(r);
    write_plane(to, b.plane, [&](std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
      fetch<1>(to + i, away);
      return s.scale * (load(from + i) - mean) + beta;
    });
  }
}

void differentiate(const BatchNormGradient& b, std::int64_t c) {
  const Planes planes(b);
  const float *dy = b.dy + c * b.plane, *x = b.x + c * b.plane;
  const F mean = all(b.mean[c]);
  D sums[2] = {};
  add_planes(sums, b.samples, b.plane, [&](std::int64_t r, std::int64_t i, F(&term)[2]) BOOST_EXT_INLINE_LAMBDA {
    const float *of = dy + r * planes.stride + i, *from = x + r * planes.stride + i;
    const std::int64_t away = planes.next(r);
    fetch<0>(of, away);
    fetch<0>(from, away);
    term[0] = load(of);
    term[1] = term[0] * (load(from) - mean);
  });
  const GradientScaling s = finish(b, c, sum(sums[0]), sum(sums[1]));
  const F of_all = all(s.of_all);
  for (std::int64_t r = b.samples - 1; r >= 0; --r) {
    const float *of = dy + r * planes.stride, *from = x + r * planes.stride;
    float* to = b.dx + c * b.plane + r * planes.stride;
    const std::int64_t away = planes.before(r);
    write_plane(to, b.plane, [&](std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
      fetch<1>(to + i, away);
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
template <class Op, class Each> void on_channels(int threads, const Op& b, std::int64_t arrays, Each each) {
  const std::int64_t work = kPasses * arrays * b.samples * b.channels * b.plane;
  if (b.plane > kLanes) {
    return on_threads(threads, work, b.channels, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) each(c);
    });
  }
  const std::int64_t together = kColumns / b.plane;
  on_threads(threads, work, quotient_up(b.channels, together), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t first = k * together, left = b.channels - first, channels = left < together ? left : together;
      each(Strip{first, channels, b.plane, channels * b.plane});
    }
  });
}

}  // namespace

void batch_norm(const Context& context, const BatchNorm& b) {
  on_channels(context.threads, b, 1, [&](auto which) { normalize(b, which); });
}

void batch_norm_gradient(const Context& context, const BatchNormGradient& b) {
  on_channels(context.threads, b, 2, [&](auto which) { differentiate(b, which); });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA

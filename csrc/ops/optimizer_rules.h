// The update expressions of ops/optimizer_step.h, one struct a rule, once for all backends. A rule is made from its
// RuleSettings; its operator() gets a lane of weights, the ready gradients and the states, changes the states and
// returns the weights.
//
// Each backend compiles this file into a namespace of its own, and has defined before
//
//   BOOST_EXT_BACKEND           that namespace
//   BOOST_EXT_INLINE            what its functions are declared with: on a device they are called there
//   F                           some float32 numbers: + - * / of two F, and float * F, each rounded once
//   F all(float)                the same number in each
//   F sqrt(F), abs(F), copy_sign(F magnitude, F sign)
//   F max(F a, F b)             where_less(b, a, a, b): a nan of b stays one
//   F where_less(x, y, a, b)    a where x < y, otherwise b; where_equal for ==
//   F raise(F, float exponent)  powf
//   double square_root(double)
//
// F may be float itself: then nothing but the namespace finds these functions. No standard library in here.
#pragma once

#include "ops/optimizer_step.h"

#if !defined(BOOST_EXT_BACKEND) || !defined(BOOST_EXT_INLINE)
#error "a backend defines its lanes before it includes the rules"
#endif

namespace BOOST_EXT_BACKEND {

// What a rule may ask of the tensor it works on.
struct OfTensor {
  float lr;
  float decay;  // decoupled
  bool first;   // it has no state yet
};

BOOST_EXT_INLINE double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

// Of x <= 0 and of 0 < x < 1, to 1e-12, with the same bits on all backends.
BOOST_EXT_INLINE double exponential(double x) {
  constexpr int kHalvings = 10;
  if (x < -700) return 0;
  x /= 1 << kHalvings;
  double result = 1;
  for (int n = 14; n > 0; --n) result = 1 + result * x / n;
  return power(result, 1 << kHalvings);
}
BOOST_EXT_INLINE double logarithm(double x) {
  double factor = -2;
  for (; x < 0.5; x = square_root(x)) factor *= 2;
  const double z = (1 - x) / (1 + x);  // up to 1/3
  double result = 0;
  for (int n = 33; n > 0; n -= 2) result = result * z * z + 1.0 / n;
  return factor * z * result;
}

// b average + (1-b) x: the exponential averages. 1 - b is rounded once, from float64.
struct Decay {
  float keep;
  float add;
  BOOST_EXT_INLINE explicit Decay(double b) : keep(static_cast<float>(b)), add(static_cast<float>(1 - b)) {}
  BOOST_EXT_INLINE F operator()(F average, F x) const { return keep * average + add * x; }
};

// d, or 0 where it has not the sign of u. A nan stays one.
BOOST_EXT_INLINE F agreeing(F d, F u) {
  const F product = d * u;
  return where_less(all(0), product, d, where_equal(product, product, all(0), product));
}

struct PlainSgd {
  static constexpr int kStates = 0;
  BOOST_EXT_INLINE explicit PlainSgd(const RuleSettings&) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F*) const { return w - t.lr * u; }
};

struct Sgd {
  static constexpr int kStates = 1;
  float momentum, undamped;
  bool nesterov;
  BOOST_EXT_INLINE explicit Sgd(const RuleSettings& s)
      : momentum(static_cast<float>(s.hyper[0])),
        undamped(static_cast<float>(1 - s.hyper[1])),
        nesterov(s.hyper[2] != 0) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* a) const {
    a[0] = t.first ? u : momentum * a[0] + undamped * u;
    return w - t.lr * (nesterov ? u + momentum * a[0] : a[0]);
  }
};

struct Momentum {
  static constexpr int kStates = 1;
  float momentum;
  bool nesterov, cautious;
  BOOST_EXT_INLINE explicit Momentum(const RuleSettings& s)
      : momentum(static_cast<float>(s.hyper[0])), nesterov(s.hyper[1] != 0), cautious(s.hyper[2] != 0) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* a) const {
    a[0] = momentum * a[0] + u;
    const F d = nesterov ? u + momentum * a[0] : a[0];
    return w - t.lr * (cautious ? agreeing(d, u) : d);
  }
};

struct Adam {
  static constexpr int kStates = 2;
  Decay first, second;
  float eps;
  bool nesterov, cautious;
  double correction;
  BOOST_EXT_INLINE explicit Adam(const RuleSettings& s)
      : first(s.hyper[0]),
        second(s.hyper[1]),
        eps(static_cast<float>(s.hyper[2])),
        nesterov(s.hyper[3] != 0),
        cautious(s.hyper[4] != 0),
        correction(square_root(1 - power(s.hyper[1], s.step)) / (1 - power(s.hyper[0], s.step))) {}
  BOOST_EXT_INLINE F moments(F u, F* mv) const {
    mv[0] = first(mv[0], u);
    mv[1] = second(mv[1], u * u);
    const F m = nesterov ? first(mv[0], u) : mv[0];
    return cautious ? agreeing(m, u) : m;
  }
  BOOST_EXT_INLINE float rate(const OfTensor& t) const { return static_cast<float>(t.lr * correction); }
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* mv) const {
    const F m = moments(u, mv);
    return w - rate(t) * m / (sqrt(mv[1]) + all(eps));
  }
};

struct AmsGrad : Adam {
  static constexpr int kStates = 3;
  using Adam::Adam;
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* mvx) const {
    const F m = moments(u, mvx);
    mvx[2] = max(mvx[2], mvx[1]);  // in this order a nan of v stays one
    return w - rate(t) * m / (sqrt(mvx[2]) + all(eps));
  }
};

struct AdamWeightDecay {
  static constexpr int kStates = 2;
  Decay first, second;
  float eps;
  bool cautious;
  BOOST_EXT_INLINE explicit AdamWeightDecay(const RuleSettings& s)
      : first(s.hyper[0]), second(s.hyper[1]), eps(static_cast<float>(s.hyper[2])), cautious(s.hyper[3] != 0) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* mv) const {
    mv[0] = first(mv[0], u);
    mv[1] = second(mv[1], u * u);
    const F m = cautious ? agreeing(mv[0], u) : mv[0];
    return w - t.lr * (m / (sqrt(mv[1]) + all(eps)) + t.decay * w);
  }
};

struct AdamW {
  static constexpr int kStates = 2;
  Decay first, second;
  float eps;
  float first_correction, second_correction;
  bool cautious;
  BOOST_EXT_INLINE explicit AdamW(const RuleSettings& s)
      : first(s.hyper[0]),
        second(s.hyper[1]),
        eps(static_cast<float>(s.hyper[2])),
        first_correction(static_cast<float>(1 / (1 - power(s.hyper[0], s.step)))),
        second_correction(static_cast<float>(1 / (1 - power(s.hyper[1], s.step)))),
        cautious(s.hyper[3] != 0) {}
  BOOST_EXT_INLINE void moments(F u, F* mv) const {
    mv[0] = first(mv[0], u);
    mv[1] = second(mv[1], u * u);
  }
  // top: first_correction * m, or what a rule has in its place
  BOOST_EXT_INLINE F direction(const OfTensor& t, F w, F top, F v) const {
    return top / (sqrt(second_correction * v) + all(eps)) + t.decay * w;
  }
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* mv) const {
    moments(u, mv);
    const F m = first_correction * mv[0];
    return w - t.lr * direction(t, w, cautious ? agreeing(m, u) : m, mv[1]);
  }
};

// AdamW's direction, scaled by norms: moments and norms in a first sweep over the tensors, the weights in a second one.
struct Lamb : AdamW {
  using AdamW::AdamW;
  BOOST_EXT_INLINE F direction(const OfTensor& t, F w, const F* mv) const {
    return AdamW::direction(t, w, first_correction * mv[0], mv[1]);
  }
};

// Of inf it is nan, so that it shows.
BOOST_EXT_INLINE F sign(F x) { return where_equal(x, all(0), x, copy_sign(all(1), x) + (x - x)); }

// Both averages multiply the old moment alone, as step_codes() of the CUDA kernels takes it.
struct Lion {
  static constexpr int kStates = 1;
  Decay first, second;
  bool cautious;
  BOOST_EXT_INLINE explicit Lion(const RuleSettings& s)
      : first(s.hyper[0]), second(s.hyper[1]), cautious(s.hyper[2] != 0) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* m) const {
    const F d = sign(first(m[0], u));
    m[0] = second(m[0], u);
    return w - t.lr * ((cautious ? agreeing(d, u) : d) + t.decay * w);
  }
};

// The momentum of step i is c(i), and grows with i. What the moment lacks is 1 - c(1) .. c(t), from t alone: no state.
struct NAdamW : AdamW {
  float of_moment, of_gradient;
  BOOST_EXT_INLINE explicit NAdamW(const RuleSettings& s) : AdamW(s) {
    cautious = s.hyper[4] != 0;
    const double decay = exponential(s.hyper[3] * logarithm(0.96));
    const auto momentum = [&](double decayed) { return s.hyper[0] * (1 - 0.5 * decayed); };
    constexpr double kNothing = 1e-20;  // beside 1
    double product = 1, decayed = 1;
    for (std::int64_t i = 0; i < s.step && product > kNothing; ++i) product *= momentum(decayed *= decay);
    const double now = momentum(power(decay, s.step)), next = momentum(power(decay, s.step + 1));
    of_gradient = static_cast<float>((1 - now) / (1 - product));
    of_moment = static_cast<float>(next / (1 - product * next));
  }
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* mv) const {
    moments(u, mv);
    const F n = of_moment * mv[0] + of_gradient * u;
    return w - t.lr * direction(t, w, cautious ? agreeing(n, u) : n, mv[1]);
  }
};

// What it adds to the state of AdamW, a slow moment, grows in weight and in memory over the first steps.
struct AdEmaMix : AdamW {
  static constexpr int kStates = 3;
  Decay slow;
  float alpha;
  BOOST_EXT_INLINE explicit AdEmaMix(const RuleSettings& s)
      : AdamW(s), slow(slow_beta(s)), alpha(static_cast<float>(s.hyper[4] * share(s, s.hyper[5]))) {
    cautious = s.hyper[7] != 0;
  }
  // How far step t is on the way of so many steps.
  static BOOST_EXT_INLINE double share(const RuleSettings& s, double steps) {
    const auto t = static_cast<double>(s.step);
    return t < steps ? t / steps : 1;
  }
  // From beta1 to beta3, so that the half-life grows by the same in each step.
  static BOOST_EXT_INLINE double slow_beta(const RuleSettings& s) {
    const double done = share(s, s.hyper[6]);
    if (done >= 1) return s.hyper[3];
    const double begun = s.hyper[0] > 0 ? (1 - done) / logarithm(s.hyper[0]) : 0;
    return exponential(1 / (begun + done / logarithm(s.hyper[3])));
  }
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* mvs) const {
    moments(u, mvs);
    mvs[2] = slow(mvs[2], u);
    const F m = first_correction * mvs[0] + alpha * mvs[2];
    return w - t.lr * direction(t, w, cautious ? agreeing(m, u) : m, mvs[1]);
  }
};

struct Adan {
  static constexpr int kStates = 4;
  Decay first, second, third;
  float eps;
  float first_correction, second_correction, third_correction;
  float of_difference;
  bool started, cautious;
  BOOST_EXT_INLINE explicit Adan(const RuleSettings& s)
      : first(s.hyper[0]),
        second(s.hyper[1]),
        third(s.hyper[2]),
        eps(static_cast<float>(s.hyper[3])),
        first_correction(static_cast<float>(1 / (1 - power(s.hyper[0], s.step)))),
        second_correction(static_cast<float>(s.hyper[1] / (1 - power(s.hyper[1], s.step)))),
        third_correction(static_cast<float>(1 / (1 - power(s.hyper[2], s.step)))),
        of_difference(static_cast<float>(s.hyper[1])),
        started(s.step > 1),
        cautious(s.hyper[4] != 0) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* mndg) const {
    const F change = started ? u - mndg[3] : u - u;  // a nan stays one
    const F ahead = u + of_difference * change;
    mndg[0] = first(mndg[0], u);
    mndg[1] = third(mndg[1], ahead * ahead);
    mndg[2] = second(mndg[2], change);
    mndg[3] = u;
    const F top = first_correction * mndg[0] + second_correction * mndg[2];
    const F d = (cautious ? agreeing(top, u) : top) / (sqrt(third_correction * mndg[1]) + all(eps));
    return (w - t.lr * d) / all(1 + t.lr * t.decay);
  }
};

// The weight is y; z makes steps of lr along d, and x, which y and z imply, averages it.
struct ScheduleFree {
  float weight, share;  // c, and how much of the step of z is one of y
  BOOST_EXT_INLINE ScheduleFree(double c, double momentum)
      : weight(static_cast<float>(c)), share(static_cast<float>(1 - momentum * (1 - c))) {}
  BOOST_EXT_INLINE static F begun(const OfTensor& t, F y, F z) { return t.first ? y : z; }
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F y, F d, F& z) const {
    const F next = y + weight * (z - y) - (t.lr * share) * d;
    z = z - t.lr * d;
    return next;
  }
};

struct ScheduleFreeSgd {
  static constexpr int kStates = 1;
  ScheduleFree step;
  BOOST_EXT_INLINE explicit ScheduleFreeSgd(const RuleSettings& s) : step(s.hyper[0], s.hyper[1]) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* z) const {
    z[0] = ScheduleFree::begun(t, w, z[0]);
    return step(t, w, u, z[0]);
  }
};

struct ScheduleFreeAdamW {
  static constexpr int kStates = 2;
  ScheduleFree step;
  Decay second;
  float eps, correction;
  BOOST_EXT_INLINE explicit ScheduleFreeAdamW(const RuleSettings& s)
      : step(s.hyper[0], s.hyper[1]),
        second(s.hyper[2]),
        eps(static_cast<float>(s.hyper[3])),
        correction(static_cast<float>(1 / (1 - power(s.hyper[2], s.step)))) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* zv) const {
    zv[0] = ScheduleFree::begun(t, w, zv[0]);
    zv[1] = second(zv[1], u * u);
    return step(t, w, u / (sqrt(correction * zv[1]) + all(eps)) + t.decay * w, zv[0]);
  }
};

// u / sqrt(h), and 0 where h is 0: there has never been a gradient.
BOOST_EXT_INLINE F over_root(F u, F h) { return where_equal(h, all(0), all(0), u / sqrt(h)); }

struct Adagrad {
  static constexpr int kStates = 1;
  bool update_slots;
  BOOST_EXT_INLINE explicit Adagrad(const RuleSettings& s) : update_slots(s.hyper[0] != 0) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* h) const {
    if (update_slots) h[0] = h[0] + u * u;
    return w - t.lr * over_root(u, h[0]);
  }
};

struct ProximalAdagrad {
  static constexpr int kStates = 1;
  float l1, l2;
  BOOST_EXT_INLINE explicit ProximalAdagrad(const RuleSettings& s)
      : l1(static_cast<float>(s.hyper[0])), l2(static_cast<float>(s.hyper[1])) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* h) const {
    h[0] = h[0] + u * u;
    const F p = w - t.lr * over_root(u, h[0]);
    if (t.lr * l1 == 0 && t.lr * l2 == 0) return p;
    return copy_sign(max(all(0), abs(p) - all(t.lr * l1)), p) / all(1 + t.lr * l2);
  }
};

struct RmsProp {
  static constexpr int kStates = 2;
  Decay average;
  float momentum, eps;
  BOOST_EXT_INLINE explicit RmsProp(const RuleSettings& s)
      : average(s.hyper[0]), momentum(static_cast<float>(s.hyper[1])), eps(static_cast<float>(s.hyper[2])) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* sa) const {
    sa[0] = average(sa[0], u * u);
    sa[1] = momentum * sa[1] + t.lr * u / sqrt(sa[0] + all(eps));
    return w - sa[1];
  }
};

struct CenteredRmsProp : RmsProp {
  static constexpr int kStates = 3;
  using RmsProp::RmsProp;
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* gsa) const {
    gsa[0] = average(gsa[0], u);
    gsa[1] = average(gsa[1], u * u);
    // Rounding can make the variance negative, by more than eps. A nan stays one.
    const F variance = max(all(0), gsa[1] - gsa[0] * gsa[0]);
    gsa[2] = momentum * gsa[2] + t.lr * u / sqrt(variance + all(eps));
    return w - gsa[2];
  }
};

struct Ftrl {
  static constexpr int kStates = 2;
  float l1, l2, exponent;
  BOOST_EXT_INLINE explicit Ftrl(const RuleSettings& s)
      : l1(static_cast<float>(s.hyper[0])),
        l2(static_cast<float>(s.hyper[1])),
        exponent(static_cast<float>(-s.hyper[2])) {}
  BOOST_EXT_INLINE F root_of(F x) const { return exponent == 0.5F ? sqrt(x) : raise(x, exponent); }
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* hz) const {
    const F next = hz[0] + u * u;
    const F root = root_of(next);
    if (t.lr == 0) {  // the limit of small rates: the weight stays
      hz[0] = next;
      hz[1] = hz[1] + u;
      return w;
    }
    hz[1] = hz[1] + u - (root - root_of(hz[0])) / all(t.lr) * w;
    hz[0] = next;
    const F shrunk = copy_sign(all(l1), hz[1]) - hz[1];
    const F next_w = where_less(all(l1), abs(hz[1]), shrunk / (root / all(t.lr) + all(2 * l2)), all(0));
    return where_equal(hz[1], hz[1], next_w, hz[1]);  // nan > l1 is false, but 0 would hide it
  }
};

}  // namespace BOOST_EXT_BACKEND

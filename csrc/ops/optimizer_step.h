// optimizer_step: one step of a first-order optimizer over a list of tensors, in one pass over weights, gradients and
// state. The rules share everything but their state and their update expression:
//
//   u = scale * ratio[i] * g + l2[i] * w          unscaled, clipped and decayed gradient of tensor i
//   u = u - mean(u over all axes but the first)   where centralize[i]; tensors of two axes and more only
//   w, state <- rule(w, u, state; lr[i])
//
// in float32, each operation rounded once. t is the number of this step, from 1. b1 .. are hyperparameters.
//
//   rule               state       update
//   sgd                [a]         a = m a + (1 - dampening) u, in the first step of a tensor a = u;
//                                  w -= lr (nesterov ? u + m a : a); with m = 0 the state may be left out: w -= lr u
//   momentum           a           a = m a + u;  w -= lr (nesterov ? u + m a : a)
//   adam               m v [x]     m = b1 m + (1-b1) u;  v = b2 v + (1-b2) u^2;  l = lr sqrt(1-b2^t) / (1-b1^t);
//                                  w -= l (nesterov ? b1 m + (1-b1) u : m) / (sqrt(v) + eps);
//                                  with x (AMSGrad) x = max(x, v) takes the place of v in the last line
//   adam_weight_decay  m v         m, v as adam;  w -= lr (m / (sqrt(v) + eps) + decay w), without bias correction
//   adamw              m v         m, v as adam;  r = m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay w;  w -= lr r
//   lamb               m v         m, v, r as adamw;  w -= lr |w|/|r| r, norms over the tensor; the ratio is 1 if a
//                                  norm is 0
//   lion               m           w -= lr (sign(b1 m + (1-b1) u) + decay w), sign(0) = 0;  m = b2 m + (1-b2) u
//   nadamw             m v         m, v as adam;  c(i) = b1 (1 - 0.96^(i psi) / 2), psi = momentum_decay;
//                                  n = c(t+1) m / (1 - c(1)..c(t+1)) + (1 - c(t)) u / (1 - c(1)..c(t));
//                                  w -= lr (n / (sqrt(v/(1-b2^t)) + eps) + decay w)
//   ademamix           m v s       m, v as adam;  s = b s + (1-b) u;  b, a = beta3 and alpha, or, on the way there:
//                                  1/ln b = (1-x)/ln b1 + x/ln beta3, x = t / beta3_steps;  a = alpha t / alpha_steps;
//                                  w -= lr ((m/(1-b1^t) + a s) / (sqrt(v/(1-b2^t)) + eps) + decay w)
//   adan               m n d g     d' = u - g, in step 1 d' = 0;  m = b1 m + (1-b1) u;  d = b2 d + (1-b2) d';
//                                  n = b3 n + (1-b3) (u + b2 d')^2;  g = u;  w = (w - lr r) / (1 + lr decay) with
//                                  r = (m/(1-b1^t) + b2 d/(1-b2^t)) / (sqrt(n/(1-b3^t)) + eps)
//   schedule_free_sgd  z           z = w in the first step of a tensor;
//                                  w += c (z - w) - lr (1 - m (1-c)) u;  z -= lr u
//   schedule_free_adamw  z v       v as adam;  r = u / (sqrt(v/(1-b2^t)) + eps) + decay w;
//                                  w, z as schedule_free_sgd with r for u and b1 for m
//   adagrad            h           h += u^2, if update_slots;  w -= lr u / sqrt(h); no step where h is 0
//   proximal_adagrad   h           h += u^2;  p = w - lr u / sqrt(h);  w = sign(p) max(|p| - lr l1, 0) / (1 + lr l2)
//   rmsprop            s a         s = d s + (1-d) u^2;  a = m a + lr u / sqrt(s + eps);  w -= a
//   centered_rmsprop   g s a       g = d g + (1-d) u;  s as rmsprop;  sqrt(max(s - g^2, 0) + eps) for the root
//   ftrl               h z         n = h + u^2;  z += u - (n^-p - h^-p)/lr w;  h = n;
//                                  w = |z| <= l1 ? 0 : (sign(z) l1 - z) / (n^-p/lr + 2 l2);  with lr = 0, w stays and
//                                  z += u
//
// Schedule-Free: w is y = (1-m) z + m x, where the gradient is taken, and x = (w - (1-m) z) / m the average of the z
// that the model is evaluated with: x += c (z - x). The caller makes c, averaging_weight, in float64: the weight of
// this step over the sum of all weights so far, see averaging_weight().
//
// cautious, of the rules that have the flag: of what lr multiplies, but not of the decay, an element is 0 where its
// sign is not that of u (Liang et al. 2024, Cautious optimizers). The paper then divides by the share of the elements
// that are left, in each tensor, which is known after the last element alone: a second sweep. That is left out; a
// larger lr makes up for it on average.
//
// Sources: Sutskever et al. 2013 (momentum, Nesterov); Kingma and Ba 2015 (adam; eps beside the uncorrected root as in
// mindspore.nn.Adam); Reddi et al. 2018 (AMSGrad); Loshchilov and Hutter 2019 (decoupled decay); You et al. 2020
// (lamb); Chen et al. 2023 (lion, algorithm 2); Dozat 2016 (nadamw; its schedule of the momentum as torch.optim.NAdam
// has it, with decoupled_weight_decay); Pagliardini et al. 2024 (ademamix); Xie et al. 2022 (adan,
// algorithm 1); Defazio et al. 2024, The road less scheduled (schedule_free_sgd, schedule_free_adamw: algorithm 1 with
// the corrected v and without a warm-up, which is the caller's); Duchi et al. 2011 (adagrad); Duchi and Singer 2009
// (proximal); Tieleman and Hinton 2012 (rmsprop); McMahan et al. 2013 (ftrl). Decoupled rules (adam_weight_decay,
// adamw, lamb, lion, nadamw, ademamix, adan, schedule_free_adamw) decay in their own expression, and l2 is 0.
//
// weights   float32, float16 or bfloat16, written
// masters   nothing, or a list like weights: float32 for half weights, written (empty views for float32 weights). The
//           arithmetic happens on them, and the weight is what rounding makes of them. Where a weight is no longer what
//           its master rounds to, somebody has set it (a loaded checkpoint), and the master takes its value. For
//           bfloat16 weights also int16 or int8, tensor by tensor: split masters, see below.
// grads     float32, float16 or bfloat16, of the weights' sizes; read
// state     for each state of the rule a list of float32 tensors of the weights' sizes, written. For momentum, adam
//           without AMSGrad, adam_weight_decay, adamw, lamb, lion and nadamw also bfloat16, or uint8 with scales,
//           tensor by tensor.
// scales    nothing, or for each state a list like weights: for each block of 256 elements (kStateBlock) of a uint8
//           state one float32, written; empty views for other states
//
// A tensor that is listed twice would be stepped twice, so written tensors must not overlap one another or anything.
// Empty and 0-d tensors are fine. inf and nan in a gradient reach weights and state (in lion, the sign of inf
// is nan): check before, or skip.
//
// State that is not float32 is read to float32, stepped, and rounded as it is stored: up or down at random, so that the
// mean is what it would have been, and changes below its spacing add up. The bits are a hash of seed, step, tensor and
// element. bfloat16 stays within 2^-7 |x|. A uint8 code c, below n = 128 and with a sign bit, or n = 256 for v, which
// is not negative, stands for scale (c/n)^4, linear between powers of two: n/8 codes for each of the upper four binary
// orders of magnitude, n/16 for each of the next four, and so on. scale is the smallest power of two of which all |x|
// of the block are at most 31/32. x stays between two codes, which are at most 4/n scale apart. Its mean is kept where
// c >= 4; a v > 0 is never stored as 0. inf, nan, and what is beyond 31/32 2^126, make a whole block nan. lamb steps by
// the rounded moments, which it reads twice. After Dettmers et al. 2022, 8-bit optimizers via block-wise quantization,
// and Gupta et al. 2015, Deep learning with limited numerical precision (rounding at random).
//
// A split master is a bfloat16 weight and its residual, an integer. With bits as 32-bit integers, the master m is
//
//   int16   w = (m + 0x8000) >> 16,  r = m - (w << 16);  m = (w << 16) + r
//   int8    the same of m rounded to a multiple of 256, w = (m + 0x8080) >> 16, with r / 256 for r
//
// So the weight is the nearest one; of two it is the one farther from 0, where a float32 master rounds to an even one.
// With int16 every m comes back bit for bit, but for nan: its weight is a quiet nan, and r = 0. With int8 m is rounded
// in each step, by at most 128 of its last places, which is 2^-16 |m| of normal numbers; from 0x7f7fff80 on to inf.
// A weight that somebody has set keeps the residual of the old one, within half its own spacing: so little that it
// cannot be noticed. Who sets weights sets the residual to 0. Otherwise 0 may be a number below bfloat16's smallest (a
// negative residual beside 0 or -0 counts as 0), and inf may be nan or finite. After FlashOptim, arXiv 2602.23349.
#pragma once

#include "ops/runtime.h"

namespace boost_ext {

enum class Rule {
  sgd,
  momentum,
  adam,
  adam_weight_decay,
  adamw,
  lamb,
  lion,
  nadamw,
  ademamix,
  adan,
  schedule_free_sgd,
  schedule_free_adamw,
  adagrad,
  proximal_adagrad,
  rmsprop,
  centered_rmsprop,
  ftrl,
};

constexpr int kMaxStates = 4;
constexpr std::int64_t kStateBlock = 256;
constexpr int kMaxHyper = 8;

enum class Bound : std::uint8_t {
  finite,
  flag,
  unit,       // within [0, 1)
  open_unit,  // within (0, 1)
  fraction,   // within [0, 1]
  positive,
  non_negative,
  non_positive
};

struct Hyper {
  const char* name = nullptr;
  Bound bound = Bound::finite;
  double standard = 0;  // of boost_ext.ops, where the caller says nothing; nan if it must say something
};

// What a rule takes. The hyperparameters lie in this order in OptimizerStep::hyper.
struct RuleFacts {
  const char* name;
  const char* op;  // for messages
  int min_states;
  int max_states;
  bool decoupled;
  Hyper hyper[kMaxHyper];
  const char* state[kMaxStates];  // for messages
  bool narrow_state = false;      // whether its states may be of 8 and 16 bits
  bool corrected = false;         // whether it corrects a bias, and must know t
};
constexpr int kNonNegative = 1;  // which state of a rule with narrow states has codes without a sign: v
const RuleFacts& facts(Rule rule);
std::vector<std::string> rule_names();  // in the order of Rule
int hyper_count(const RuleFacts& rule);
Rule find_rule(const std::string& name);  // std::invalid_argument with all names
void require_hyper(const RuleFacts& rule, const std::vector<double>& hyper);

// Schedule-Free: the learning rate grows over the steps of the warm-up, and step t weighs t^r lr_max^weight_lr_power.
struct AveragingSettings {
  double warmup_steps, r, weight_lr_power;
};
struct AveragingSums {
  double lr_max = 0;  // the largest learning rate so far
  double weight_sum = 0;
};
// c of step t. The learning rates of all groups get the warm-up, and the sums this step, by the largest of them.
double averaging_weight(const AveragingSettings& settings, AveragingSums& sums, std::int64_t step,
                        std::vector<float>& lr);

float beta_power(double beta, std::int64_t step);  // beta^t, which optimizers of MindSpore keep in their checkpoints

// Settings that the caller keeps in arrays where the tensors are; views without data for the others. Those on a device
// are read by kernels alone, which nobody waits for: a captured graph of steps takes what they hold at each replay. And
// nobody checks them there. Arrays on the CPU mean the same, and are checked.
struct StepArrays {
  View scale;  // float32, one
  View step;   // int32, one
  View lr;     // float32, one, or one a tensor, as the next two
  View decay;
  View ratio;
  View skip;  // float32, one: where it is not 0, as unscale_and_check leaves it, nothing at all is written
};

// The settings of one call; a vector of one value holds for all tensors.
struct StepSettings {
  Rule rule = Rule::momentum;
  std::vector<double> hyper;
  double scale = 1;       // 1 / loss scale, times the factor of clipping
  std::int64_t step = 1;  // t; 0 if nobody needs it: not the rule, and not the random bits of narrow state
  std::vector<float> lr;  // one, or one a tensor
  std::vector<float> decay;
  std::vector<float> ratio;
  std::vector<unsigned char> centralize;
  std::vector<unsigned char> first;   // sgd with dampening, Schedule-Free: this tensor has no state yet
  std::int64_t seed = 0;              // of narrow states
  std::vector<std::int64_t> numbers;  // what makes the random bits of each tensor its own; empty: 0, 1, ...
  StepArrays at;                      // what is in there is not looked for above
};

void optimizer_step(const Context& context, const StepSettings& settings, const Views& weights, const Views& masters,
                    const Views& grads, const std::vector<Views>& state, const std::vector<Views>& scales = {});

// The same for some rows of one tensor: its gradient is 0 but for `values`, one row for each of `indices` (int32). Rows
// that occur more than once are summed first, in float64. Only these rows of weights, master (or a view without data)
// and state are read and written, by one step of the rule each: what the others would have decayed, they keep ("lazy").
// Not for lamb, whose norms go over the tensor, and not for uint8 state, whose blocks go over rows. Indices outside of
// the tensor are refused; on a device, where nobody reads them before, their rows of `values` are ignored.
void optimizer_step_rows(const Context& context, const StepSettings& settings, const View& weights, const View& master,
                         const View& indices, const View& values, const Views& state);

// What ops/optimizer_rules.h makes a rule from. A value, so that it may be handed to a device as it is.
struct RuleSettings {
  double hyper[kMaxHyper] = {};
  std::int64_t step = 1;
};

inline bool is_residual(const View& v) { return v.dtype == DType::i16 || v.dtype == DType::i8; }

// What a kernel sees: everything a list of one value a tensor.
struct OptimizerStep {
  Tensors weights;  // what the rule steps: weights, or float32 masters
  Tensors narrow;   // half weights beside their float32 master, or the residuals of split ones; without data elsewhere
  Tensors grads;
  const Views* state;
  int states;
  const Views* scales;
  const std::uint64_t* keys;  // of random bits
  const float* scale;
  const float* l2;
  const float* decay;
  const float* lr;
  const unsigned char* centralize;
  const unsigned char* first;
  RuleSettings settings;
  // What kernels make scale, l2 and keys from themselves, where an array may hold a part of it.
  bool decoupled;
  double scale_of_all;
  const float* ratio;
  std::int64_t seed;
  const std::vector<std::int64_t>* numbers;
  const StepArrays* at;
};

// Keys of random bits, made part by part: of the seed, the step, the tensor, and the row if there are some only.
#if defined(__CUDACC__)
#define BOOST_EXT_ANYWHERE __host__ __device__
#else
#define BOOST_EXT_ANYWHERE
#endif
// The finalizer of splitmix64 (Steele et al. 2014).
BOOST_EXT_ANYWHERE inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
BOOST_EXT_ANYWHERE inline std::uint64_t key_of(std::uint64_t key, std::int64_t part) {
  return mixed(key + 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(part) + 1));
}

BOOST_EXT_CPU_KERNEL(void, optimizer_step, const Context&, Rule, const OptimizerStep&)
BOOST_EXT_ASCEND_KERNEL(optimizer_step, const Context&, Rule, const OptimizerStep&)

// out[r] = sum of the rows order[first[r]] .. order[first[r + 1] - 1] of values, for r < count.
BOOST_EXT_CPU_KERNEL(void, sum_rows, const Context&, const View& values, const std::int64_t* order,
                     const std::int64_t* first, std::int64_t count, float* out)

BOOST_EXT_CUDA_KERNEL(optimizer_step, const Context&, Rule, const OptimizerStep&)
// Of the one tensor of the step, these rows.
BOOST_EXT_CUDA_KERNEL(optimizer_step_rows, const Context&, Rule, const OptimizerStep&, const View& indices,
                      const View& values)

}  // namespace boost_ext

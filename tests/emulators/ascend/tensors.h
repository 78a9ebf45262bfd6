// Tensors, queues, pipes, flags.
#pragma once

#include <type_traits>

#include "launch.h"

namespace emulator {

struct EventPipes {
  int from, to;
};
inline EventPipes pipes_of(AscendC::HardEvent event) {
  constexpr EventPipes kTable[] = {{PIPE_MTE2, PIPE_V}, {PIPE_V, PIPE_MTE2},    {PIPE_V, PIPE_MTE3},
                                   {PIPE_MTE3, PIPE_V}, {PIPE_MTE2, PIPE_MTE3}, {PIPE_MTE3, PIPE_MTE2},
                                   {PIPE_V, PIPE_S},    {PIPE_S, PIPE_V},       {PIPE_MTE2, PIPE_S},
                                   {PIPE_S, PIPE_MTE2}, {PIPE_MTE3, PIPE_S},    {PIPE_S, PIPE_MTE3}};
  return kTable[static_cast<int>(event)];
}

}  // namespace emulator

namespace AscendC {

// A part of UB. It may be used until its buffer is freed.
template <class T> class LocalTensor {
 public:
  using PrimType = T;
  LocalTensor() = default;
  LocalTensor(int buffer, std::int64_t offset, std::int64_t bytes)
      : buffer_(buffer), generation_(slot(buffer).generation), offset_(offset), bytes_(bytes) {}

  std::uint32_t GetSize() const { return static_cast<std::uint32_t>(bytes_ / static_cast<std::int64_t>(sizeof(T))); }
  LocalTensor operator[](std::uint32_t element) const {
    LocalTensor t = *this;
    const auto skip = static_cast<std::int64_t>(element) * static_cast<std::int64_t>(sizeof(T));
    emulator::expect(skip <= bytes_, "LocalTensor: offset ", element, " beyond ", GetSize(), " elements");
    t.offset_ += skip;
    t.bytes_ -= skip;
    return t;
  }
  template <class U> LocalTensor<U> ReinterpretCast() const {
    LocalTensor<U> t(buffer_, offset_, bytes_);
    check("ReinterpretCast");
    return t;
  }

  // By the scalar unit.
  T GetValue(std::uint32_t i) const {
    emulator::Instruction it("GetValue", PIPE_S);
    it.reads(at("GetValue", i, 1), sizeof(T));
    it.go();
    T value;
    std::memcpy(&value, data("GetValue") + static_cast<std::size_t>(i) * sizeof(T), sizeof value);
    return value;
  }
  void SetValue(std::uint32_t i, T value) const {
    emulator::Instruction it("SetValue", PIPE_S);
    it.writes(at("SetValue", i, 1), sizeof(T));
    it.go();
    std::memcpy(data("SetValue") + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof value);
  }

  // For the emulator: where `count` elements from the i-th on lie.
  std::int64_t at(const char* op, std::int64_t i, std::int64_t count) const {
    check(op);
    const auto size = static_cast<std::int64_t>(sizeof(T));
    emulator::expect(i >= 0 && (i + count) * size <= bytes_, op, ": elements ", i, " to ", i + count - 1,
                     " of a tensor of ", GetSize());
    return offset_ + i * size;
  }
  std::uint8_t* data(const char* op) const {
    check(op);
    return emulator::core().ub.get() + offset_;
  }
  std::int64_t offset() const { return offset_; }
  int buffer() const { return buffer_; }
  void aligned(const char* op, std::int64_t bytes = emulator::kBlockBytes) const {
    emulator::expect(offset_ % bytes == 0, op, ": a tensor in UB must be aligned to ", bytes, " bytes");
  }
  void check(const char* op) const {
    emulator::expect(buffer_ >= 0, op, ": a tensor without memory");
    emulator::expect(slot(buffer_).generation == generation_, op, ": a tensor that was freed");
  }

 private:
  static emulator::Buffer& slot(int buffer) { return emulator::core().buffers[static_cast<std::size_t>(buffer)]; }
  int buffer_ = -1;
  std::uint32_t generation_ = 0;
  std::int64_t offset_ = 0;
  std::int64_t bytes_ = 0;
};

template <class T> class GlobalTensor {
 public:
  using PrimType = T;
  void SetGlobalBuffer(T* data) { SetGlobalBuffer(data, 0); }
  void SetGlobalBuffer(T* data, std::uint64_t size) {
    data_ = data;
    size_ = size;
    bounded_ = size != 0;
  }
  GlobalTensor operator[](std::uint64_t element) const {
    GlobalTensor t = *this;
    emulator::expect(!bounded_ || element <= size_, "GlobalTensor: offset ", element, " beyond ", size_, " elements");
    t.data_ += element;
    if (bounded_) t.size_ -= element;
    return t;
  }
  const T* GetPhyAddr() const { return data_; }
  T* GetPhyAddr(std::uint64_t i) const { return data_ + i; }
  std::uint64_t GetSize() const { return size_; }

  T GetValue(std::uint64_t i) const {
    emulator::Instruction it("GetValue", PIPE_S);
    it.reads_global(at("GetValue", static_cast<std::int64_t>(i) * sizeof(T), sizeof(T)), sizeof(T));
    it.go();
    return data_[i];
  }
  void SetValue(std::uint64_t i, T value) {
    emulator::Instruction it("SetValue", PIPE_S);
    it.writes_global(at("SetValue", static_cast<std::int64_t>(i) * sizeof(T), sizeof(T)), sizeof(T));
    it.go();
    data_[i] = value;
    ++emulator::core().dirty_lines;
  }
  // For the emulator: `bytes` from a byte offset on, within the declared size.
  std::uint8_t* at(const char* op, std::int64_t offset, std::int64_t bytes) const {
    const auto size = static_cast<std::int64_t>(size_ * sizeof(T));
    emulator::expect(!bounded_ || offset + bytes <= size, op, ": global memory out of bounds, bytes ", offset, " to ",
                     offset + bytes - 1, " of ", size);
    return reinterpret_cast<std::uint8_t*>(data_) + offset;
  }

 private:
  T* data_ = nullptr;
  std::uint64_t size_ = 0;
  bool bounded_ = false;
};

template <class T, CacheLine, DcciDst = DcciDst::CACHELINE_OUT> void DataCacheCleanAndInvalid(const GlobalTensor<T>&) {
  emulator::core().dirty_lines = 0;
}

// The queue knows which way its tensors go: VECIN from MTE2 to V and back, VECOUT from V to MTE3 and back.
template <TPosition position, int depth> class TQue {
  static_assert(position == TPosition::VECIN || position == TPosition::VECOUT, "a queue is VECIN or VECOUT");
  static constexpr int kFrom = position == TPosition::VECIN ? PIPE_MTE2 : PIPE_V;
  static constexpr int kTo = position == TPosition::VECIN ? PIPE_V : PIPE_MTE3;

 public:
  template <class T> LocalTensor<T> AllocTensor() {
    emulator::Core& core = emulator::core();
    emulator::Queue& q = queue("AllocTensor");
    emulator::Buffer& b = core.buffers[static_cast<std::size_t>(q.buffers[q.next % q.buffers.size()])];
    emulator::expect(b.state == emulator::Buffer::kFree, "AllocTensor: all ", q.buffers.size(),
                     " buffers of the queue are taken");
    const int index = q.buffers[q.next++ % q.buffers.size()];
    core.join(kFrom, b.released);
    b.state = emulator::Buffer::kAllocated;
    core.poison(b.offset, b.bytes);
    return LocalTensor<T>(index, b.offset, b.bytes);
  }
  template <class T> bool EnQue(const LocalTensor<T>& t) {
    emulator::Queue& q = queue("EnQue");
    emulator::Buffer& b = mine("EnQue", t, emulator::Buffer::kAllocated, "allocated");
    emulator::expect(static_cast<int>(q.waiting.size()) < depth, "EnQue: a queue of depth ", depth, " is full");
    b.ready = emulator::core().snapshot(kFrom);
    b.state = emulator::Buffer::kEnqueued;
    q.waiting.push_back(t.buffer());
    return true;
  }
  template <class T> LocalTensor<T> DeQue() {
    emulator::Core& core = emulator::core();
    emulator::Queue& q = queue("DeQue");
    emulator::expect(!q.waiting.empty(), "DeQue: the queue is empty");
    const int index = q.waiting.front();
    q.waiting.erase(q.waiting.begin());
    emulator::Buffer& b = core.buffers[static_cast<std::size_t>(index)];
    core.join(kTo, b.ready);
    b.state = emulator::Buffer::kDequeued;
    return LocalTensor<T>(index, b.offset, b.bytes);
  }
  template <class T> void FreeTensor(LocalTensor<T>& t) {
    emulator::Buffer& b = mine("FreeTensor", t, emulator::Buffer::kDequeued, "dequeued");
    b.released = emulator::core().snapshot(kTo);
    b.state = emulator::Buffer::kFree;
    ++b.generation;
  }
  void init(int queue) { queue_ = queue; }

 private:
  emulator::Queue& queue(const char* op) const {
    emulator::expect(queue_ >= 0, op, ": a queue without InitBuffer");
    return emulator::core().queues[static_cast<std::size_t>(queue_)];
  }
  template <class T>
  emulator::Buffer& mine(const char* op, const LocalTensor<T>& t, int state, const char* name) const {
    queue(op);
    t.check(op);
    emulator::Buffer& b = emulator::core().buffers[static_cast<std::size_t>(t.buffer())];
    emulator::expect(b.queue == queue_, op, ": a tensor of another queue");
    emulator::expect(b.state == state, op, ": a tensor that is not ", name);
    return b;
  }
  int queue_ = -1;
};

// Memory without any order: whoever uses it sets flags and barriers.
template <TPosition position = TPosition::VECCALC> class TBuf {
 public:
  template <class T> LocalTensor<T> Get() {
    emulator::expect(buffer_ >= 0, "Get: a TBuf without InitBuffer");
    const emulator::Buffer& b = emulator::core().buffers[static_cast<std::size_t>(buffer_)];
    return LocalTensor<T>(buffer_, b.offset, b.bytes);
  }
  void init(int buffer) { buffer_ = buffer; }

 private:
  int buffer_ = -1;
};

class TPipe {
 public:
  TPipe() {
    emulator::expect(!emulator::core().has_pipe, "TPipe: a kernel has one");
    emulator::core().has_pipe = true;
  }
  template <TPosition position, int depth>
  bool InitBuffer(TQue<position, depth>& queue, std::uint8_t number, std::uint32_t bytes) {
    emulator::Core& core = emulator::core();
    emulator::expect(number > 0, "InitBuffer: a queue without buffers");
    // Each buffer may hold an event between FreeTensor and AllocTensor, and there are eight of them.
    int same = number;
    for (const emulator::Queue& q : core.queues)
      same += q.position == position ? static_cast<int>(q.buffers.size()) : 0;
    emulator::expect(same <= emulator::kMaxTensors, "InitBuffer: ", same, " tensors at one position, ",
                     emulator::kMaxTensors, " at most");
    const int index = static_cast<int>(core.queues.size());
    emulator::Queue q{position, depth, {}, {}, 0};
    for (int i = 0; i < number; ++i) q.buffers.push_back(core.add_buffer(bytes, index));
    core.queues.push_back(q);
    queue.init(index);
    return true;
  }
  template <TPosition position> bool InitBuffer(TBuf<position>& buffer, std::uint32_t bytes) {
    buffer.init(emulator::core().add_buffer(bytes, -1));
    return true;
  }
  template <HardEvent event> TEventID AllocEventID() {
    unsigned& taken = emulator::core().event_ids[static_cast<std::size_t>(event)];
    for (int id = 0; id < emulator::kEvents; ++id) {
      if (taken >> id & 1U) continue;
      taken |= 1U << id;
      return static_cast<TEventID>(id);
    }
    emulator::fail("AllocEventID: all ", emulator::kEvents, " ids of an event are taken");
  }
  template <HardEvent event> void ReleaseEventID(TEventID id) {
    unsigned& taken = emulator::core().event_ids[static_cast<std::size_t>(event)];
    emulator::expect(id >= 0 && id < emulator::kEvents && (taken >> id & 1U) != 0, "ReleaseEventID: ", int{id},
                     " is not taken");
    taken &= ~(1U << id);
  }
};

template <HardEvent event> void SetFlag(event_t id) {
  emulator::expect(id >= 0 && id < emulator::kEvents, "SetFlag: an event id from 0 to 7, got ", id);
  auto& flag = emulator::core().flags[static_cast<std::size_t>(event)][static_cast<std::size_t>(id)];
  emulator::expect(!flag.set, "SetFlag: flag ", id, " is set already");
  flag.set = true;
  flag.clock = emulator::core().snapshot(emulator::pipes_of(event).from);
}
template <HardEvent event> void WaitFlag(event_t id) {
  emulator::expect(id >= 0 && id < emulator::kEvents, "WaitFlag: an event id from 0 to 7, got ", id);
  auto& flag = emulator::core().flags[static_cast<std::size_t>(event)][static_cast<std::size_t>(id)];
  emulator::expect(flag.set, "WaitFlag: flag ", id, " is not set, the pipe waits for ever");
  flag.set = false;
  emulator::Core& core = emulator::core();
  const int number = core.waits++;
  emulator::waits_seen = std::max(emulator::waits_seen, core.waits);
  if (number == emulator::settings.without_wait) return;
  core.join(emulator::pipes_of(event).to, flag.clock);
}
template <pipe_t pipe> void PipeBarrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::Core& core = emulator::core();
  const char* folder = std::strrchr(file, '/');  // which may be spelled in several ways
  const std::string at = std::string(folder ? folder + 1 : file) + ":" + std::to_string(line);
  emulator::barriers_seen.insert(at);
  if (at == emulator::settings.without_barrier) return;
  if (pipe == PIPE_ALL) return core.barrier_all();
  core.known[static_cast<std::size_t>(pipe) % emulator::kPipes][static_cast<std::size_t>(pipe) % emulator::kPipes] =
      core.issued[static_cast<std::size_t>(pipe) % emulator::kPipes];
}

inline void SetMaskCount() { emulator::core().mask_counts = true; }
inline void SetMaskNorm() { emulator::core().mask_counts = false; }
template <class T> void SetVectorMask(std::uint64_t, std::uint64_t) { emulator::core().mask_changed = true; }
inline void ResetMask() { emulator::core().mask_changed = false; }

template <class T> void SetAtomicAdd() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, half> || std::is_same_v<T, std::int32_t> ||
                    std::is_same_v<T, std::int16_t>,
                "SetAtomicAdd: float, half, int32 or int16");
  emulator::core().atomic = true;
}
inline void SetAtomicNone() { emulator::core().atomic = false; }

}  // namespace AscendC

// Runs an unmodified CUDA source on the host: g++ -include cuda_shim.h.
//
// Every thread of a block is a fibre with its own stack; one fibre runs at a time and gives way
// only where a CUDA thread can wait: __syncthreads, __syncwarp, shuffles, votes.  Blocks run one after another.
// Blocks and fibres run forwards or backwards (shim_set_order): a kernel whose result depends on that races.
// Checked: shuffles that read lanes outside the mask or ended ones, lanes outside their own mask, masks that
// differ within one operation, barriers that some threads never reach, dynamic shared memory past its size
// (with AddressSanitizer).  Not shown: races inside a warp, memory order, tensor cores, asynchronous copies.
// Static shared memory keeps its bytes from one block to the next, as on a GPU; the dynamic one is filled
// with NaN before each block.
//
// SKYSIEVE_HOST_SHIM is defined; __CUDA_ARCH__ is not, so that feature macros take their plain branch.
#pragma once
#include <ucontext.h>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define SKYSIEVE_HOST_SHIM 1

// Fibres change stacks by swapcontext, or by a few instructions where these are known: a launch of a million switches
// spends most of its time in the system call of swapcontext.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define SHIM_PLAIN_SWITCH 1
extern "C" __attribute__((visibility("hidden"))) void shim_switch(void** from, void* to);

#endif

#include "cuda_types.h"

namespace shim {

constexpr unsigned kMaxThreads = 1024, kStack = 256 * 1024, kDynamicMax = 227 * 1024, kAll = 0xffffffffu;

enum class State { ready, block_wait, warp_wait, ended };

enum class Op { none, sync, shuffle, vote, match };

#if defined(SHIM_PLAIN_SWITCH)
using Context = void*;    // the stack pointer; the registers lie on the stack
inline void switch_to(Context& from, Context& to) { shim_switch(&from, to); }
inline void prepare(Context& context, unsigned char* stack, size_t size, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + size);
  top[-1] = nullptr;      // where entry would return to
  top[-2] = reinterpret_cast<void*>(entry);
  context = top - 8;      // six registers
}
#else
using Context = ucontext_t;
inline void switch_to(Context& from, Context& to) { swapcontext(&from, &to); }
inline void prepare(Context& context, unsigned char* stack, size_t size, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = size;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
#endif

struct Fibre {
  Context context;
  uint3 tid;
  unsigned linear;
  State state;
  Op op;                    // what a warp_wait waits for
  unsigned mask, source;    // lanes taking part; lane to read from
  uint64_t value, result;
  int predicate;            // of __syncthreads_count and its like
  void* fake_stack;
};

struct Machine {
  dim3 grid, block;
  uint3 bid;
  unsigned threads = 0;
  bool backwards = false;
  void (*body)(const void*) = nullptr;   // what every thread does, with its arguments
  const void* arguments = nullptr;
  Fibre* fibres = nullptr;  // of kMaxThreads
  unsigned char* stacks = nullptr;
  Context scheduler;
  void* scheduler_fake = nullptr;
  const void* scheduler_bottom = nullptr;
  size_t scheduler_size = 0;
  Fibre* current = nullptr;
  int votes = 0;            // threads with a true predicate at the last block barrier
  char error[512] = "";
};

inline Machine& machine() { static Machine m; return m; }
inline Fibre& self() { return *machine().current; }
inline unsigned char* stack_of(unsigned i) { return machine().stacks + size_t(i) * kStack; }
alignas(1024) inline unsigned char dynamic_shared[kDynamicMax];

inline void to_scheduler(bool last = false) {
  Machine& m = machine();
  Fibre* f = m.current;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &f->fake_stack, m.scheduler_bottom, m.scheduler_size);
#endif
  switch_to(f->context, m.scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(f->fake_stack, &m.scheduler_bottom, &m.scheduler_size);
#endif
  (void)last;
}

// In machine.cpp, which is compiled once.
void fail(const char* format, ...);
void complete_if_all_here(unsigned warp, unsigned mask, Op op);
int run_grid(const unsigned* config, void (*body)(const void*), const void* arguments);

inline uint64_t warp_operation(Op op, unsigned mask, uint64_t value, unsigned source) {
  Fibre& f = self();
  if (!(mask >> (f.linear & 31) & 1)) fail("lane %u is not in its own mask %08x", f.linear & 31, mask);
  f.op = op; f.mask = mask; f.value = value; f.source = source; f.state = State::warp_wait;
  complete_if_all_here(f.linear / 32, mask, op);
  if (f.state != State::ready) to_scheduler();
  return f.result;
}

inline int block_barrier(int predicate) {
  self().predicate = predicate != 0;
  self().state = State::block_wait;
  to_scheduler();
  return machine().votes;
}

template <class X> using Plain = std::remove_cv_t<std::remove_reference_t<X>>;

template <class... A, size_t... I>
int launch(void (*kernel)(A...), const unsigned* config, void** args, std::index_sequence<I...>) {
  struct Call { void (*kernel)(A...); void** args; } call{kernel, args};
  auto body = [](const void* of) {
    const Call& c = *static_cast<const Call*>(of);
    c.kernel(*static_cast<Plain<A>*>(c.args[I])...);
  };
  return run_grid(config, body, &call);
}
template <class... A> int launch(void (*kernel)(A...), const unsigned* config, void** args) {
  return launch(kernel, config, args, std::index_sequence_for<A...>());
}
// Parameter i: its size, negative for a pointer.  Returns the number of parameters.
template <class... A> int parameters(void (*)(A...), int* sizes) {
  int i = 0;
  ((sizes[i++] = std::is_pointer_v<A> ? -int(sizeof(A)) : int(sizeof(A))), ...);
  return i;
}

template <class V> uint64_t to_bits(V v) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8, "shuffles move 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof v);
  return bits;
}
template <class V> V from_bits(uint64_t bits) { V v; std::memcpy(&v, &bits, sizeof v); return v; }
inline unsigned lane() { return self().linear & 31; }
template <class V> V shuffle(unsigned mask, V v, unsigned source) {
  return from_bits<V>(warp_operation(Op::shuffle, mask, to_bits(v), source));
}

}  // namespace shim

#define SHIM_KERNEL(name)                                                                                             \
  extern "C" int shim_launch_##name(const unsigned* config, void** args) { return shim::launch(name, config, args); } \
  extern "C" int shim_parameters_##name(int* sizes) { return shim::parameters(name, sizes); }
#define SHIM_COMMON                                                                     \
  extern "C" const char* shim_error() { return shim::machine().error; }                 \
  extern "C" void shim_set_order(int backwards) { shim::machine().backwards = backwards; }

#define threadIdx (shim::self().tid)
#define blockIdx (shim::machine().bid)
#define blockDim (shim::machine().block)
#define gridDim (shim::machine().grid)
constexpr int warpSize = 32;

// ---------------------------------------------------------------- barriers, shuffles, votes
inline void __syncthreads() { shim::block_barrier(0); }
inline int __syncthreads_count(int p) { return shim::block_barrier(p); }
inline int __syncthreads_or(int p) { return shim::block_barrier(p) != 0; }
inline int __syncthreads_and(int p) { return shim::block_barrier(!p) == 0; }
inline void __syncwarp(unsigned mask = shim::kAll) { shim::warp_operation(shim::Op::sync, mask, 0, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

template <class V> V __shfl_sync(unsigned mask, V v, int source, int width = 32) {
  const unsigned l = shim::lane(), base = l & ~unsigned(width - 1);
  return shim::shuffle(mask, v, base | (unsigned(source) & unsigned(width - 1)));
}
template <class V> V __shfl_up_sync(unsigned mask, V v, unsigned delta, int width = 32) {
  const unsigned l = shim::lane(), in = l & unsigned(width - 1);
  return shim::shuffle(mask, v, in >= delta ? l - delta : l);
}
template <class V> V __shfl_down_sync(unsigned mask, V v, unsigned delta, int width = 32) {
  const unsigned l = shim::lane(), in = l & unsigned(width - 1);
  return shim::shuffle(mask, v, in + delta < unsigned(width) ? l + delta : l);
}
template <class V> V __shfl_xor_sync(unsigned mask, V v, int x, int width = 32) {
  const unsigned l = shim::lane(), other = l ^ unsigned(x);
  return shim::shuffle(mask, v, other < (l & ~unsigned(width - 1)) + unsigned(width) ? other : l);
}
inline unsigned __ballot_sync(unsigned mask, int p) { return unsigned(shim::warp_operation(shim::Op::vote, mask, p != 0, 0)); }
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
template <class V> unsigned __match_any_sync(unsigned mask, V v) {
  return unsigned(shim::warp_operation(shim::Op::match, mask, shim::to_bits(v), 0));
}
inline unsigned __activemask() {
  const shim::Machine& m = shim::machine();
  unsigned active = 0, first = shim::self().linear & ~31u;
  for (unsigned l = 0; l < 32 && first + l < m.threads; l++) active |= unsigned(m.fibres[first + l].state != shim::State::ended) << l;
  return active;
}
inline void __trap() { shim::fail("__trap()"); }
inline void __nanosleep(unsigned) {}

// ---------------------------------------------------------------- atomics: one fibre runs at a time
namespace shim {
template <class V> struct Same { typedef V type; };   // no deduction from the value: it converts, as in CUDA
template <class V> using same = typename Same<V>::type;
template <class V> V replace(V* p, V with) { V old = *p; *p = with; return old; }
}  // namespace shim
template <class V> V atomicAdd(V* p, shim::same<V> v) { return shim::replace<V>(p, V(*p + v)); }
template <class V> V atomicSub(V* p, shim::same<V> v) { return shim::replace<V>(p, V(*p - v)); }
template <class V> V atomicMin(V* p, shim::same<V> v) { return shim::replace<V>(p, v < *p ? v : *p); }
template <class V> V atomicMax(V* p, shim::same<V> v) { return shim::replace<V>(p, v > *p ? v : *p); }
template <class V> V atomicExch(V* p, shim::same<V> v) { return shim::replace<V>(p, v); }
template <class V> V atomicAnd(V* p, shim::same<V> v) { return shim::replace<V>(p, V(*p & v)); }
template <class V> V atomicOr(V* p, shim::same<V> v) { return shim::replace<V>(p, V(*p | v)); }
template <class V> V atomicXor(V* p, shim::same<V> v) { return shim::replace<V>(p, V(*p ^ v)); }
template <class V> V atomicCAS(V* p, shim::same<V> expected, shim::same<V> v) { return shim::replace<V>(p, *p == expected ? v : *p); }
inline unsigned atomicInc(unsigned* p, unsigned top) { return shim::replace<unsigned>(p, *p >= top ? 0u : *p + 1); }
inline unsigned atomicDec(unsigned* p, unsigned top) { return shim::replace<unsigned>(p, *p == 0 || *p > top ? top : *p - 1); }

#include "cuda_math.h"

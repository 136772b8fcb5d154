// The machine of cuda_shim.h: blocks, fibres and what a warp waits for.
#include "cuda_shim.h"
#include <sys/mman.h>
#include <cstdarg>
#include <cstdio>

#if defined(SHIM_PLAIN_SWITCH)
asm(R"(
  .text
  .p2align 4
  .globl shim_switch
  .hidden shim_switch
  .type shim_switch, @function
shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size shim_switch, .-shim_switch
)");
#endif

namespace shim {

void fail(const char* format, ...) {
  Machine& m = machine();
  if (!m.error[0]) {
    const int n = std::snprintf(m.error, sizeof m.error, "block (%u,%u,%u) thread (%u,%u,%u): ", m.bid.x, m.bid.y, m.bid.z,
                                m.current ? self().tid.x : 0, m.current ? self().tid.y : 0, m.current ? self().tid.z : 0);
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(m.error + n, sizeof m.error - size_t(n), format, arguments);
    va_end(arguments);
  }
  if (m.current) for (;;) to_scheduler();   // never resumed: the launch is given up
}

void complete_if_all_here(unsigned warp, unsigned mask, Op op) {
  Machine& m = machine();
  const unsigned left = m.threads - warp * 32, lanes = left < 32 ? left : 32;
  unsigned here = 0;
  Fibre* w = &m.fibres[warp * 32];
  for (unsigned l = 0; l < lanes; l++) {
    if (!(mask >> l & 1) || w[l].state == State::ended) continue;
    if (w[l].state != State::warp_wait) return;
    if (w[l].mask != mask) {
      if (w[l].mask >> (m.current->linear & 31) & 1)
        fail("lane %u waits with mask %08x, others of the same operation with %08x", l, w[l].mask, mask);
      return;
    }
    if (w[l].op != op) fail("lane %u of mask %08x is in another warp operation", l, mask);
    here |= 1u << l;
  }
  uint64_t ballot = 0;
  for (unsigned l = 0; l < lanes; l++) if ((here >> l & 1) && w[l].value) ballot |= 1ull << l;
  for (unsigned l = 0; l < lanes; l++) {
    if (!(here >> l & 1)) continue;
    Fibre& f = w[l];
    if (op == Op::shuffle) {
      if (!(here >> f.source & 1)) fail("shuffle of lane %u reads lane %u, which takes no part (mask %08x)", l, f.source, mask);
      f.result = w[f.source].value;
    } else if (op == Op::vote) {
      f.result = ballot;
    } else if (op == Op::match) {
      f.result = 0;
      for (unsigned k = 0; k < lanes; k++) if ((here >> k & 1) && w[k].value == f.value) f.result |= 1ull << k;
    }
    f.state = State::ready;
  }
}

static void entry() {
  Machine& m = machine();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_bottom, &m.scheduler_size);
#endif
  m.body(m.arguments);
  Fibre& f = self();
  f.state = State::ended;
  Fibre* w = &m.fibres[f.linear / 32 * 32];
  for (unsigned l = 0; l < 32 && f.linear / 32 * 32 + l < m.threads; l++)
    if (w[l].state == State::warp_wait && (w[l].mask >> (f.linear & 31) & 1)) {
      complete_if_all_here(f.linear / 32, w[l].mask, w[l].op);
      break;
    }
  to_scheduler(true);
}

static void resume(Fibre& f) {
  Machine& m = machine();
  m.current = &f;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&m.scheduler_fake, stack_of(f.linear), kStack);
#endif
  switch_to(m.scheduler, f.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(m.scheduler_fake, nullptr, nullptr);
#endif
  m.current = nullptr;
}

static bool run_block(unsigned shared) {
  Machine& m = machine();
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(dynamic_shared, kDynamicMax);
  __asan_unpoison_memory_region(m.stacks, size_t(m.threads) * kStack);
#endif
  std::memset(dynamic_shared, 0xff, shared);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(dynamic_shared + shared, kDynamicMax - shared);
#endif
  for (unsigned i = 0; i < m.threads; i++) {
    Fibre& f = m.fibres[i];
    f.linear = i;
    f.tid = make_uint3(i % m.block.x, i / m.block.x % m.block.y, i / (m.block.x * m.block.y));
    f.state = State::ready;
    f.fake_stack = nullptr;
    prepare(f.context, stack_of(i), kStack, entry);
  }
  for (;;) {
    bool ran = false;
    for (unsigned k = 0; k < m.threads; k++) {
      Fibre& f = m.fibres[m.backwards ? m.threads - 1 - k : k];
      if (f.state != State::ready) continue;
      ran = true;
      resume(f);
      if (m.error[0]) return false;
    }
    if (ran) continue;
    unsigned at_barrier = 0, ended = 0, votes = 0, stuck = 0;
    for (unsigned i = 0; i < m.threads; i++) {
      const Fibre& f = m.fibres[i];
      if (f.state == State::block_wait) { at_barrier++; votes += unsigned(f.predicate); }
      else if (f.state == State::ended) ended++;
      else stuck = i;
    }
    if (ended == m.threads) return true;
    if (at_barrier + ended < m.threads) {
      m.current = &m.fibres[stuck];
      const unsigned mask = m.current->mask;
      std::snprintf(m.error, sizeof m.error,
                    "block (%u,%u,%u): thread %u waits for lanes of mask %08x that never come; %u threads are at __syncthreads, "
                    "%u have ended", m.bid.x, m.bid.y, m.bid.z, stuck, mask, at_barrier, ended);
      m.current = nullptr;
      return false;
    }
    m.votes = int(votes);
    for (unsigned i = 0; i < m.threads; i++) if (m.fibres[i].state == State::block_wait) m.fibres[i].state = State::ready;
  }
}

int run_grid(const unsigned* c, void (*body)(const void*), const void* arguments) {
  Machine& m = machine();
  m.grid = dim3(c[0], c[1], c[2]);
  m.block = dim3(c[3], c[4], c[5]);
  m.threads = c[3] * c[4] * c[5];
  m.body = body;
  m.arguments = arguments;
  m.error[0] = 0;
  if (m.threads > kMaxThreads || c[6] > kDynamicMax) {
    std::snprintf(m.error, sizeof m.error, "%u threads and %u bytes of shared memory: too much for a block", m.threads, c[6]);
    return 1;
  }
  if (!m.stacks) {
    m.stacks = static_cast<unsigned char*>(mmap(nullptr, size_t(kMaxThreads) * kStack, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (m.stacks == MAP_FAILED) { std::perror("cuda_shim: stacks"); std::abort(); }
    m.fibres = new Fibre[kMaxThreads];
  }
  const uint64_t blocks = uint64_t(c[0]) * c[1] * c[2];
  for (uint64_t k = 0; k < blocks; k++) {
    const uint64_t b = m.backwards ? blocks - 1 - k : k;
    m.bid = make_uint3(unsigned(b % c[0]), unsigned(b / c[0] % c[1]), unsigned(b / c[0] / c[1]));
    if (!run_block(c[6])) return 1;
  }
  return 0;
}

}  // namespace shim

// The identity kernels and the spin kernel: the source of identity_ptx.inc, which is what programs
// carry.
//
// A block is a run of 8-byte words counted from its own start, whatever its address: word i is
// identity_word(identity, i) in little-endian order, and the last bytes % 8 bytes are the low bytes
// of the word that would stand there. src/driver/identity.cpp does the same on the host.
//
// The host shares a launch's thread blocks ("ctas") out by size, so that one large block fills the
// GPU and sixty-three small ones beside it cost a thread block each.
//
// After a change run scripts/identity_ptx; a test compares the two where nvcc is found.
#include <stdint.h>

typedef unsigned long long u64;

struct piece {
  u64 address;
  u64 bytes;
  u64 identity;
  uint32_t first_cta;
  uint32_t ctas;
};
struct launch_table {
  piece pieces[64];
  uint32_t count;
  uint32_t unused;
};
struct report {
  u64 mismatches;
  u64 expected;
  u64 found_word;
  u64 address;
};

// identity_word(identity, index) with identity * golden already done.
static __device__ __forceinline__ u64 word_at(u64 base, u64 index) {
  u64 z = base + index;
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93ULL;
  return z ^ (z >> 32);
}

// The last piece that starts at or before this cta.
static __device__ __forceinline__ const piece& piece_of_cta(const launch_table& table) {
  uint32_t low = 0;
  uint32_t high = table.count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (table.pieces[middle].first_cta <= blockIdx.x)
      low = middle;
    else
      high = middle;
  }
  return table.pieces[low];
}

static __device__ __forceinline__ void write_bytes(u64 address, u64 word, u64 count) {
  for (u64 i = 0; i < count; ++i) {
    reinterpret_cast<uint8_t*>(address)[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

static __device__ __forceinline__ u64 read_bytes(u64 address, u64 count) {
  u64 word = 0;
  for (u64 i = 0; i < count; ++i) {
    word |= static_cast<u64>(reinterpret_cast<const volatile uint8_t*>(address)[i]) << (8 * i);
  }
  return word;
}

extern "C" __global__ void __launch_bounds__(256)
    millpond_identity_write(const __grid_constant__ launch_table table) {
  const piece& mine = piece_of_cta(table);
  const u64 address = mine.address;
  const u64 bytes = mine.bytes;
  const u64 base = mine.identity * 0x9e3779b97f4a7c15ULL;
  const u64 start = static_cast<u64>(blockIdx.x - mine.first_cta) * blockDim.x + threadIdx.x;
  const u64 step = static_cast<u64>(mine.ctas) * blockDim.x;
  u64 done = 0;  // words that the wide loops cover
  if (address % 16 == 0) {
    const u64 pairs = bytes / 16;
    ulonglong2* out = reinterpret_cast<ulonglong2*>(address);
#pragma unroll 4
    for (u64 i = start; i < pairs; i += step) {
      out[i] = make_ulonglong2(word_at(base, 2 * i), word_at(base, 2 * i + 1));
    }
    done = pairs * 2;
  } else if (address % 8 == 0) {
    done = bytes / 8;
    u64* out = reinterpret_cast<u64*>(address);
#pragma unroll 4
    for (u64 i = start; i < done; i += step) out[i] = word_at(base, i);
  }
  // What is left: at most two words of an aligned block, every word of an unaligned one.
  for (u64 i = done + start; i * 8 < bytes; i += step) {
    const u64 left = bytes - i * 8;
    write_bytes(address + i * 8, word_at(base, i), left < 8 ? left : 8);
  }
}

// The first mismatch to come takes the place; a block never lies at address zero. A function with a
// C name, not inlined, so that the text does not depend on where this file lies.
extern "C" __device__ __noinline__ void millpond_tell(report* out, u64 identity, u64 found,
                                                      u64 address) {
  // The report may lie in host memory, where an exchange crosses the link and takes its turn: only
  // while nobody has answered anything is one tried.
  if (*reinterpret_cast<volatile u64*>(&out->address) != 0) return;
  if (atomicCAS(&out->address, 0ULL, address) == 0) {
    out->expected = identity;
    out->found_word = found;
  }
}

// Four loads are in flight a thread before the first is looked at. They go to the L2 cache, which
// is where another stream's writes are seen.
extern "C" __global__ void __launch_bounds__(256)
    millpond_identity_check(const __grid_constant__ launch_table table, report* out) {
  const piece& mine = piece_of_cta(table);
  const u64 address = mine.address;
  const u64 bytes = mine.bytes;
  const u64 base = mine.identity * 0x9e3779b97f4a7c15ULL;
  const u64 start = static_cast<u64>(blockIdx.x - mine.first_cta) * blockDim.x + threadIdx.x;
  const u64 step = static_cast<u64>(mine.ctas) * blockDim.x;
  u64 wrong = 0;
  u64 done = 0;
  if (address % 16 == 0) {
    const u64 pairs = bytes / 16;
    const ulonglong2* in = reinterpret_cast<const ulonglong2*>(address);
    for (u64 i = start; i < pairs; i += 4 * step) {
      ulonglong2 found[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (i + k * step < pairs) found[k] = __ldcg(in + i + k * step);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const u64 at = i + k * step;
        if (at >= pairs) break;
        if (found[k].x != word_at(base, 2 * at)) {
          if (wrong++ == 0) millpond_tell(out, mine.identity, found[k].x, address + at * 16);
        }
        if (found[k].y != word_at(base, 2 * at + 1)) {
          if (wrong++ == 0) millpond_tell(out, mine.identity, found[k].y, address + at * 16 + 8);
        }
      }
    }
    done = pairs * 2;
  } else if (address % 8 == 0) {
    done = bytes / 8;
    const u64* in = reinterpret_cast<const u64*>(address);
    for (u64 i = start; i < done; i += step) {
      const u64 found = __ldcg(in + i);
      if (found != word_at(base, i)) {
        if (wrong++ == 0) millpond_tell(out, mine.identity, found, address + i * 8);
      }
    }
  }
  for (u64 i = done + start; i * 8 < bytes; i += step) {
    const u64 left = bytes - i * 8;
    const u64 count = left < 8 ? left : 8;
    const u64 mask = count == 8 ? ~0ULL : (1ULL << (8 * count)) - 1;
    const u64 found = read_bytes(address + i * 8, count);
    if (found != (word_at(base, i) & mask)) {
      if (wrong++ == 0) millpond_tell(out, mine.identity, found, address + i * 8);
    }
  }
  // One addition a warp: the report may lie in host memory, where an addition crosses the link.
  for (int offset = 16; offset > 0; offset /= 2)
    wrong += __shfl_xor_sync(0xffffffffu, wrong, offset);
  if (wrong != 0 && threadIdx.x % 32 == 0) atomicAdd(&out->mismatches, wrong);
}

extern "C" __global__ void __launch_bounds__(32) millpond_spin(u64 nanoseconds) {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  const u64 start = now;
  while (now - start < nanoseconds) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
}

// The pretended devices' memory and copies: blocks of the host's, poisoned until written and until arrived.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "state.h"

namespace sim {

std::map<char*, Block>::iterator around(std::map<char*, Block>& blocks, const void* pointer) {
  auto place = (char*)pointer;
  auto next = blocks.upper_bound(place);
  if (next == blocks.begin()) return blocks.end();
  --next;
  return place < next->first + next->second.size ? next : blocks.end();
}

}  // namespace sim

using namespace sim;

namespace {

constexpr size_t kMostPoisonedBytes = 64 << 20;  // to touch more would take the host's memory for nothing
constexpr size_t kMostStagedBytes = 65536;       // small pageable sources ride along with the commands

bool within(std::map<char*, Block>& blocks, const void* pointer) { return around(blocks, pointer) != blocks.end(); }

void* map_memory(size_t size) {
  void* place = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return place == MAP_FAILED ? nullptr : place;
}

bool goes_as_said(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    default: return true;
  }
}

// The caller holds the mutex: whoever changes a pinned source before `at` has a race with the device.
void watch_pinned_source(Nanoseconds at, const void* from, size_t size) {
  std::vector<char> was((const char*)from, (const char*)from + size);
  defer(at, [was = std::move(was), from] {
    if (within(machine().pinned, from) && memcmp(was.data(), from, was.size()) != 0)
      fault("a pinned source of " + std::to_string(was.size()) + " bytes changed before its copy to the device ran");
  });
}

cudaError_t copy(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t on, bool async) {
  UNLESS_BROKEN;
  auto& m = machine();
  if (size == 0) return cudaSuccess;
  std::unique_lock<std::mutex> lock(m.mutex);
  bool to_device = within(m.memory, to), from_device = within(m.memory, from);
  if (!goes_as_said(kind, to_device, from_device)) return fail(cudaErrorInvalidValue);
  m.copies++;
  Nanoseconds at = occupy(stream_of(on), m.copy_us + size / m.bytes_per_us);
  if (to_device || !from_device) {
    memcpy(to, from, size);
    if (from_device || !to_device) return cudaSuccess;
    bool from_pinned = within(m.pinned, from);
    if (async && from_pinned) watch_pinned_source(at, from, size);
    bool driver_waits = !from_pinned && size > kMostStagedBytes;
    lock.unlock();
    if (!async || driver_waits) wait_until(at, async ? "cudaMemcpyAsync from pageable memory" : "cudaMemcpy to the device");
    return cudaSuccess;
  }
  std::vector<char> bytes((const char*)from, (const char*)from + size);
  if (async && within(m.pinned, to)) {
    if (m.poison) memset(to, 0xFF, size);
    defer(at, [bytes = std::move(bytes), to] {
      if (within(machine().pinned, to)) memcpy(to, bytes.data(), bytes.size());
    });
    return cudaSuccess;
  }
  lock.unlock();
  wait_until(at, async ? "cudaMemcpyAsync to pageable memory" : "cudaMemcpy to the host");
  memcpy(to, bytes.data(), size);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** place, size_t size) {
  UNLESS_BROKEN;
  auto& m = machine();
  std::lock_guard<std::mutex> lock(m.mutex);
  *place = nullptr;
  if (m.failing_mallocs > 0) {
    m.failing_mallocs--;
    return fail(cudaErrorMemoryAllocation);
  }
  if (m.used[current_device] + size > m.memory_mib * 1048576) return fail(cudaErrorMemoryAllocation);
  void* mapped = map_memory(size);
  if (!mapped) return fail(cudaErrorMemoryAllocation);
  if (m.poison && size <= kMostPoisonedBytes) memset(mapped, 0xFF, size);  // what nobody wrote is NaN
  m.memory[(char*)mapped] = {size, current_device};
  m.used[current_device] += size;
  *place = mapped;
  return cudaSuccess;
}

cudaError_t cudaFree(void* place) {
  UNLESS_BROKEN;
  auto& m = machine();
  if (!place) return cudaSuccess;
  wait_until(everything(), "cudaFree");
  std::lock_guard<std::mutex> lock(m.mutex);
  auto block = m.memory.find((char*)place);
  if (block == m.memory.end()) return fail(cudaErrorInvalidValue);
  munmap(place, block->second.size);
  m.used[block->second.device] -= block->second.size;
  m.memory.erase(block);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  UNLESS_BROKEN;
  *total = size_t(machine().memory_mib * 1048576);
  *free = *total - std::min(*total, machine().used[current_device]);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** place, size_t size, unsigned) {
  UNLESS_BROKEN;
  auto& m = machine();
  std::lock_guard<std::mutex> lock(m.mutex);
  if (m.failing_host_allocs > 0) {
    m.failing_host_allocs--;
    return fail(cudaErrorMemoryAllocation);
  }
  *place = map_memory(size);
  if (!*place) return fail(cudaErrorMemoryAllocation);
  m.pinned[(char*)*place] = {size, current_device};
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** place, size_t size) { return cudaHostAlloc(place, size, 0); }

cudaError_t cudaFreeHost(void* place) {
  auto& m = machine();
  wait_until(everything(), "cudaFreeHost");
  std::lock_guard<std::mutex> lock(m.mutex);
  auto block = m.pinned.find((char*)place);
  if (block == m.pinned.end()) return fail(cudaErrorInvalidValue);
  munmap(place, block->second.size);
  m.pinned.erase(block);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* place, size_t size, unsigned) {
  std::lock_guard<std::mutex> lock(machine().mutex);
  machine().pinned[(char*)place] = {size, current_device};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* place) {
  std::lock_guard<std::mutex> lock(machine().mutex);
  machine().pinned.erase((char*)place);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* about, const void* place) {
  auto& m = machine();
  std::lock_guard<std::mutex> lock(m.mutex);
  memset(about, 0, sizeof *about);
  auto on_device = around(m.memory, place);
  about->type = cudaMemoryTypeUnregistered;
  about->device = -2;  // cudaInvalidDeviceId
  if (on_device != m.memory.end()) {
    about->type = cudaMemoryTypeDevice;
    about->device = on_device->second.device;
  } else if (within(m.pinned, place)) {
    about->type = cudaMemoryTypeHost;
    about->device = 0;
  }
  about->devicePointer = about->hostPointer = (void*)place;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(to, from, size, kind, stream, true);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return copy(to, from, size, kind, nullptr, false);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
  return copy(to, from, size, cudaMemcpyDeviceToDevice, stream, true);
}
cudaError_t cudaMemsetAsync(void* place, int value, size_t size, cudaStream_t stream) {
  UNLESS_BROKEN;
  memset(place, value, size);
  sim_kernel(stream, "memset", size);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* place, int value, size_t size) { return cudaMemsetAsync(place, value, size, nullptr); }
}

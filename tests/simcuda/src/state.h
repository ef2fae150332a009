// The one pretended machine: its devices' clocks, memory and settings, and how a host waits for them.
//
// Time: every stream has an instant until which it is busy. Work that is sent to it moves this instant on;
// events take it as their time; a host that waits sleeps until then. Operators have computed their results by
// the time they are "launched", so the order on one stream is right. What leaves the device by an asynchronous
// copy reaches pinned memory only when its time has come; until then a NaN pattern lies there, so that reading
// too early shows. What is copied to the device must not change before its time: that is checked.
#pragma once

#include <cuda_runtime_api.h>
#include <time.h>

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device.h"

namespace sim {

using Nanoseconds = int64_t;

constexpr int kMaxDevices = 16;

inline Nanoseconds now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

inline double setting(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text ? atof(text) : otherwise;
}

struct Stream {
  int device = 0;
  Nanoseconds busy_until = 0;
  int priority = 0;
};

struct Event {
  int device = 0;
  Nanoseconds at = -1;  // -1: never recorded
  bool timing = true;
};

struct Block {
  size_t size;
  int device;
};

// One for the process, never destroyed: torch's own statics outlive main().
struct Machine {
  std::mutex mutex;  // over all that follows but the settings
  std::condition_variable more;
  std::map<char*, Block> memory, pinned;
  std::multimap<Nanoseconds, std::function<void()>> deferred;  // in the order of their times, then as they came
  std::unordered_map<const void*, std::string> kernels;        // names of torch's own kernels
  std::deque<Nanoseconds> in_queue;                            // ends of launched operators
  std::vector<Stream*> streams;                                // few, and never freed
  Stream default_streams[kMaxDevices];
  size_t used[kMaxDevices] = {};
  bool thread_runs = false;

  int devices = std::min(kMaxDevices, std::max(1, int(setting("SIMCUDA_DEVICES", 1))));
  double kernel_us = setting("SIMCUDA_KERNEL_US", 10), copy_us = setting("SIMCUDA_COPY_US", 5);
  double bytes_per_us = setting("SIMCUDA_BYTES_PER_US", 400000);
  double memory_mib = setting("SIMCUDA_MEMORY_MIB", 8192);
  double poison = setting("SIMCUDA_POISON", 1);
  double queue_depth = setting("SIMCUDA_QUEUE_DEPTH", 1024);
  double failing_mallocs = 0, failing_host_allocs = 0, broken = 0, memory_out_in = 0;
  double kernels_launched = 0, copies = 0, waits = 0, faults = 0, queue_full = 0;
  SimOnWait on_wait = nullptr;
  SimOnFault on_fault = nullptr;
};

Machine& machine();

extern thread_local int current_device;

// Remembers `error` as the thread's last one.
cudaError_t fail(cudaError_t error);

// Tells of a use that a real device would punish.
void fault(const std::string& what);

Stream& stream_of(cudaStream_t stream);

// The caller holds the mutex: run what was deferred until then, and defer something.
void run_due(Nanoseconds until);
void defer(Nanoseconds at, std::function<void()> act);

// Keep `stream` busy for so much longer; until when.
Nanoseconds occupy(Stream& stream, double microseconds);

// The host waits; the caller does not hold the mutex.
void wait_until(Nanoseconds at, const char* what);

// When the last stream of all is done.
Nanoseconds everything();

// The block around `pointer`, or the map's end.
std::map<char*, Block>::iterator around(std::map<char*, Block>& blocks, const void* pointer);

}  // namespace sim

// A kernel has failed, in an assertion say: every call from then on says so.
#define UNLESS_BROKEN \
  if (sim::machine().broken) return sim::fail(cudaError_t(int(sim::machine().broken)))

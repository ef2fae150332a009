// Streams' time: what is busy until when, what happens later, and what a waiting host is told.
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "state.h"

namespace sim {

// A loader's workers are forked: the mutex must be free in them, and a thread is not copied.
static Machine* survive_forks(Machine* machine) {
  pthread_atfork([] { sim::machine().mutex.lock(); }, [] { sim::machine().mutex.unlock(); },
                 [] {
                   sim::machine().mutex.unlock();
                   sim::machine().thread_runs = false;
                 });
  return machine;
}

Machine& machine() {
  static Machine* machine = survive_forks(new Machine);
  return *machine;
}

thread_local int current_device = 0;

void fault(const std::string& what) {
  auto& m = machine();
  m.faults++;
  if (m.on_fault)
    m.on_fault(what.c_str());
  else
    fprintf(stderr, "simcuda: %s\n", what.c_str());
}

Stream& stream_of(cudaStream_t stream) {
  auto value = reinterpret_cast<uintptr_t>(stream);  // 1 and 2 are CUDA's names for default streams
  return value <= 2 ? machine().default_streams[current_device] : *reinterpret_cast<Stream*>(stream);
}

void run_due(Nanoseconds until) {
  auto& deferred = machine().deferred;
  while (!deferred.empty() && deferred.begin()->first <= until) {
    auto act = std::move(deferred.begin()->second);
    deferred.erase(deferred.begin());
    act();
  }
}

static void work_in_background() {
  auto& m = machine();
  std::unique_lock<std::mutex> lock(m.mutex);
  for (;;) {
    run_due(now());
    if (m.deferred.empty())
      m.more.wait(lock);
    else
      m.more.wait_for(lock, std::chrono::nanoseconds(std::max<Nanoseconds>(m.deferred.begin()->first - now(), 1000)));
  }
}

void defer(Nanoseconds at, std::function<void()> act) {
  auto& m = machine();
  m.deferred.emplace(at, std::move(act));
  if (!m.thread_runs) {
    m.thread_runs = true;
    std::thread(work_in_background).detach();
  }
  m.more.notify_one();
}

Nanoseconds occupy(Stream& stream, double microseconds) {
  stream.busy_until = std::max(stream.busy_until, now()) + Nanoseconds(microseconds * 1000);
  return stream.busy_until;
}

void wait_until(Nanoseconds at, const char* what) {
  auto& m = machine();
  Nanoseconds left = at - now();
  m.waits++;
  if (m.on_wait) m.on_wait(what, left > 0 ? left / 1000.0 : 0, left > 0);
  while ((left = at - now()) > 0) {
    timespec pause{left / 1000000000LL, left % 1000000000LL};
    nanosleep(&pause, nullptr);
  }
  std::lock_guard<std::mutex> lock(m.mutex);
  run_due(now());
}

Nanoseconds everything() {
  auto& m = machine();
  std::lock_guard<std::mutex> lock(m.mutex);
  Nanoseconds last = 0;
  for (auto& stream : m.default_streams) last = std::max(last, stream.busy_until);
  for (auto* stream : m.streams) last = std::max(last, stream->busy_until);
  return last;
}

}  // namespace sim

using namespace sim;

extern "C" {

void sim_kernel(void* stream, const char*, uint64_t bytes) {
  auto& m = machine();
  Nanoseconds pause = 0;
  {
    std::lock_guard<std::mutex> lock(m.mutex);
    m.kernels_launched++;
    m.in_queue.push_back(occupy(stream_of((cudaStream_t)stream), m.kernel_us + bytes / m.bytes_per_us));
    while (!m.in_queue.empty() && m.in_queue.front() <= now()) m.in_queue.pop_front();
    if (m.in_queue.size() > m.queue_depth) pause = m.in_queue.front() - now();
  }
  if (pause > 0) {  // the launch itself blocks, as CUDA's does: no wait of the program's own
    m.queue_full++;
    timespec t{pause / 1000000000LL, pause % 1000000000LL};
    nanosleep(&t, nullptr);
  }
}

void sim_operator_waits(void* stream, const char* name) { wait_until(stream_of((cudaStream_t)stream).busy_until, name); }

cudaError_t cudaDeviceSynchronize(void) {
  UNLESS_BROKEN;
  wait_until(everything(), "cudaDeviceSynchronize");
  return cudaSuccess;
}

// ---- streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  UNLESS_BROKEN;
  auto* made = new Stream{.device = current_device, .priority = priority};
  std::lock_guard<std::mutex> lock(machine().mutex);
  machine().streams.push_back(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) { return cudaStreamCreateWithPriority(s, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int* priority) {
  *priority = stream_of(s).priority;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  UNLESS_BROKEN;
  return now() >= stream_of(s).busy_until ? cudaSuccess : fail(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  UNLESS_BROKEN;
  wait_until(stream_of(s).busy_until, "cudaStreamSynchronize");
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned) {
  std::lock_guard<std::mutex> lock(machine().mutex);
  auto& stream = stream_of(s);
  stream.busy_until = std::max(stream.busy_until, reinterpret_cast<Event*>(event)->at);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
  std::lock_guard<std::mutex> lock(machine().mutex);
  defer(occupy(stream_of(s), 1), [f, data] { f(data); });
  return cudaSuccess;
}

// ---- CUDA graphs are not pretended: nothing is ever captured

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t*,
                                        const cudaGraphNode_t**, size_t*) {
#endif
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  UNLESS_BROKEN;
  auto* made = new Event{.device = current_device, .timing = !(flags & cudaEventDisableTiming)};
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t s, unsigned) {
  UNLESS_BROKEN;
  std::lock_guard<std::mutex> lock(machine().mutex);
  auto& stream = stream_of(s);
  bool is_default = reinterpret_cast<uintptr_t>(s) <= 2;
  if (reinterpret_cast<Event*>(event)->device != (is_default ? current_device : stream.device))
    return fail(cudaErrorInvalidResourceHandle);
  reinterpret_cast<Event*>(event)->at = occupy(stream, 0);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) { return cudaEventRecordWithFlags(event, s, 0); }
cudaError_t cudaEventQuery(cudaEvent_t event) {
  UNLESS_BROKEN;
  std::lock_guard<std::mutex> lock(machine().mutex);
  if (now() < reinterpret_cast<Event*>(event)->at) return fail(cudaErrorNotReady);
  run_due(now());
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  UNLESS_BROKEN;
  wait_until(reinterpret_cast<Event*>(event)->at, "cudaEventSynchronize");
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  UNLESS_BROKEN;
  auto *a = reinterpret_cast<Event*>(start), *b = reinterpret_cast<Event*>(end);
  if (!a->timing || !b->timing || a->at < 0 || b->at < 0) return fail(cudaErrorInvalidResourceHandle);
  if (now() < a->at || now() < b->at) return fail(cudaErrorNotReady);
  *ms = (b->at - a->at) / 1e6f;
  return cudaSuccess;
}
}

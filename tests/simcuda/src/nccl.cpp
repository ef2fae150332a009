// The pretended libnccl: collectives between processes of one machine, through shared memory.
//
// Operators compute while they are launched, and so do collectives: a rank that comes first blocks its host in the
// launch. A real one's goes on until the launch queue is full, and blocks then. Neither counts as a wait.

// Kernels' headers, which nccl.h includes and torch's wheels cannot compile without a CUDA compiler: only names here.
#include <cuda_runtime_api.h>
#define __CUDA_RUNTIME_H__
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "device.h"
#include "state.h"

namespace {

constexpr int kMaxRanks = 64;
constexpr size_t kHeaderBytes = 4096;
constexpr size_t kSlotBytes = 1 << 20;  // a rank's part of an exchange; what is larger goes in several

struct Header {
  std::atomic<uint64_t> meetings[kMaxRanks];  // how many each rank has come to
};
static_assert(sizeof(Header) <= kHeaderBytes);

}  // namespace

struct ncclComm {
  std::string name;
  int rank, size, device = 0, splits = 0;
  char* memory;  // the header, then each rank's slot; never unmapped: another thread may be in a collective
  uint64_t meetings = 0;
  std::atomic<bool> aborted = false;

  Header& header() const { return *reinterpret_cast<Header*>(memory); }
  char* slot(int rank) const { return memory + kHeaderBytes + rank * kSlotBytes; }
};

namespace {

char last_error[512];

ncclResult_t fail(ncclResult_t result, const std::string& what) {
  snprintf(last_error, sizeof last_error, "%s", what.c_str());
  return result;
}

// ---- communicators

std::string path_of(const std::string& name) { return "/dev/shm/" + name; }

// SIMCUDA_NCCL_SHM_MIB: pretend that /dev/shm holds no more; without it, it holds what it holds.
int reserve(int file, size_t bytes) {
  if (bytes > sim::setting("SIMCUDA_NCCL_SHM_MIB", 1e9) * 1048576) return ENOSPC;
  return posix_fallocate(file, 0, bytes);
}

// Waits for all ranks; false if the communicator was aborted meanwhile.
bool meet(ncclComm* comm) {
  auto& meetings = comm->header().meetings;
  meetings[comm->rank].store(++comm->meetings);
  for (int rank = 0; rank < comm->size; rank++)
    for (int looks = 0; meetings[rank].load() < comm->meetings; looks++) {
      if (comm->aborted) return false;
      timespec pause{0, looks < 100 ? 1000 : 50000};
      nanosleep(&pause, nullptr);
    }
  return true;
}

ncclResult_t join(ncclComm_t* result, const std::string& name, int rank, int size) {
  if (size > kMaxRanks) return fail(ncclInvalidArgument, "simnccl: more than 64 ranks");
  std::string path = path_of(name);
  size_t bytes = kHeaderBytes + kSlotBytes * size;
  int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  int error = file < 0 ? errno : reserve(file, bytes);
  void* memory = MAP_FAILED;
  if (!error) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  if (file >= 0) close(file);
  if (error) {  // in NCCL's own words
    unlink(path.c_str());
    return fail(ncclSystemError, "Error while creating shared memory segment " + path + " (size " + std::to_string(bytes) +
                                     "), error: " + strerror(error) + " (" + std::to_string(error) + ")");
  }
  auto* comm = new ncclComm{.name = name, .rank = rank, .size = size, .memory = static_cast<char*>(memory)};
  cudaGetDevice(&comm->device);
  *result = comm;
  if (!meet(comm)) return fail(ncclSystemError, "simnccl: aborted");
  if (rank == 0) unlink(path.c_str());  // all have it: nothing is left behind by ranks that are killed
  return ncclSuccess;
}

// ---- numbers

size_t width_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    default: return 8;
  }
}

template <class T>
T combined(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd: return a * b;
    case ncclMax: return a != a || a > b ? a : b;  // a NaN stays
    case ncclMin: return a != a || a < b ? a : b;
    default: return a + b;
  }
}

// Low precisions are summed in float32 and rounded once.
template <class T>
void reduce_as(ncclComm* comm, char* out, size_t count, ncclRedOp_t op) {
  using Sum = std::conditional_t<std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>, float, T>;
  auto number = [&](int rank, size_t i) { return static_cast<Sum>(reinterpret_cast<const T*>(comm->slot(rank))[i]); };
  for (size_t i = 0; i < count; i++) {
    Sum sum = number(0, i);
    for (int rank = 1; rank < comm->size; rank++) sum = combined(sum, number(rank, i), op);
    if (op == ncclAvg) sum = sum / Sum(comm->size);
    T rounded = static_cast<T>(sum);
    memcpy(out + i * sizeof(T), &rounded, sizeof(T));
  }
}

bool can_reduce(ncclDataType_t type, ncclRedOp_t op) { return type <= ncclBfloat16 && op < ncclNumOps; }

void reduce(ncclComm* comm, char* out, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclInt8: return reduce_as<int8_t>(comm, out, count, op);
    case ncclUint8: return reduce_as<uint8_t>(comm, out, count, op);
    case ncclInt32: return reduce_as<int32_t>(comm, out, count, op);
    case ncclUint32: return reduce_as<uint32_t>(comm, out, count, op);
    case ncclInt64: return reduce_as<int64_t>(comm, out, count, op);
    case ncclUint64: return reduce_as<uint64_t>(comm, out, count, op);
    case ncclFloat16: return reduce_as<c10::Half>(comm, out, count, op);
    case ncclBfloat16: return reduce_as<c10::BFloat16>(comm, out, count, op);
    case ncclFloat64: return reduce_as<double>(comm, out, count, op);
    default: return reduce_as<float>(comm, out, count, op);
  }
}

// ---- collectives

// SIMCUDA_NCCL_LOG: a file to which each rank adds a line for each of its collectives.
void write_down(const ncclComm* comm, const char* what, size_t bytes) {
  static const char* path = getenv("SIMCUDA_NCCL_LOG");
  if (!path) return;
  std::string line = comm->name + " rank " + std::to_string(comm->rank) + " of " + std::to_string(comm->size) + " " + what + " " +
                     std::to_string(bytes) + " bytes\n";
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  if (write(file, line.data(), line.size()) < 0) fail(ncclSystemError, "simnccl: the log cannot be written");
  close(file);
}

// Part by part: this rank puts `bytes` of `send` into its slot unless that is null, all meet, and `take(done, part)`
// reads the slots of all.
template <class Take>
ncclResult_t exchange(ncclComm* comm, const void* send, size_t bytes, Take take) {
  size_t done = 0;
  do {
    size_t part = std::min(bytes - done, kSlotBytes);
    if (send) memcpy(comm->slot(comm->rank), static_cast<const char*>(send) + done, part);
    if (!meet(comm)) return fail(ncclSystemError, "simnccl: aborted");
    take(done, part);
    if (!meet(comm)) return fail(ncclSystemError, "simnccl: aborted");
    done += part;
  } while (done < bytes);
  return ncclSuccess;
}

template <class Take>
ncclResult_t collective(ncclComm* comm, const char* what, const void* send, size_t bytes, cudaStream_t stream, Take take) {
  write_down(comm, what, bytes);
  ncclResult_t result = exchange(comm, send, bytes, take);
  if (result == ncclSuccess) sim_kernel(stream, what, bytes);
  return result;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
// NCCL's own words: torch passes them on.
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    default: return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t) { return last_error; }

// ---- communicators

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> number = 0;
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "nccl-sim-%d-%lld-%d", getpid(), static_cast<long long>(sim::now()), number++);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  return join(comm, id.internal, rank, size);
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return join(comm, id.internal, rank, size);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids, ncclConfig_t*) {
  return join(comm, ids[0].internal, rank, size);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* result, ncclConfig_t*) {
  struct Choice {
    int color, key, rank;
  } own{color, key, comm->rank};
  int rank = 0, size = 0;
  auto count = [&](size_t, size_t) {
    for (int other = 0; other < comm->size; other++) {
      auto& its = *reinterpret_cast<Choice*>(comm->slot(other));
      if (its.color != color) continue;
      size++;
      rank += std::pair(its.key, its.rank) < std::pair(own.key, own.rank);
    }
  };
  if (auto error = exchange(comm, &own, sizeof own, count); error != ncclSuccess) return error;
  std::string name = comm->name + "-" + std::to_string(comm->splits++) + "-" + std::to_string(color);
  *result = nullptr;
  return color == NCCL_SPLIT_NOCOLOR ? ncclSuccess : join(result, name, rank, size);
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  return ncclSuccess;
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) { return ncclCommAbort(comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* result) {
  *result = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }
// Each collective of a group runs at once: all ranks call them in the same order.
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : fail(ncclUnhandledCudaError, "out of memory");
}
ncclResult_t ncclMemFree(void* memory) {
  cudaFree(memory);
  return ncclSuccess;
}

// ---- collectives

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  if (!can_reduce(type, op)) return fail(ncclInvalidArgument, "simnccl: this reduction is not pretended");
  size_t width = width_of(type);
  return collective(comm, "allreduce", in, count * width, stream, [&](size_t done, size_t part) {
    reduce(comm, static_cast<char*>(out) + done, part / width, type, op);
  });
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  if (!can_reduce(type, op)) return fail(ncclInvalidArgument, "simnccl: this reduction is not pretended");
  size_t width = width_of(type);
  return collective(comm, "reduce", in, count * width, stream, [&](size_t done, size_t part) {
    if (comm->rank == root) reduce(comm, static_cast<char*>(out) + done, part / width, type, op);
  });
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  const void* send = comm->rank == root ? in : nullptr;
  return collective(comm, "broadcast", send, count * width_of(type), stream, [&](size_t done, size_t part) {
    memcpy(static_cast<char*>(out) + done, comm->slot(root), part);
  });
}
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  size_t bytes = count * width_of(type);
  return collective(comm, "allgather", in, bytes, stream, [&](size_t done, size_t part) {
    for (int rank = 0; rank < comm->size; rank++) memcpy(static_cast<char*>(out) + rank * bytes + done, comm->slot(rank), part);
  });
}
// Rank by rank, all give what that rank takes. `out` may lie inside `in`: it is written last.
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  if (!can_reduce(type, op)) return fail(ncclInvalidArgument, "simnccl: this reduction is not pretended");
  size_t width = width_of(type), bytes = count * width;
  std::vector<char> own(bytes);
  write_down(comm, "reducescatter", bytes);
  for (int rank = 0; rank < comm->size; rank++) {
    auto error = exchange(comm, static_cast<const char*>(in) + rank * bytes, bytes, [&](size_t done, size_t part) {
      if (rank == comm->rank) reduce(comm, own.data() + done, part / width, type, op);
    });
    if (error != ncclSuccess) return error;
  }
  memcpy(out, own.data(), bytes);
  sim_kernel(stream, "reducescatter", bytes);
  return ncclSuccess;
}
}

// The rest is there to be found, and refuses: ncclInvalidUsage. The real library would take our communicators for its own.
#define MISSING(name)                                                                \
  extern "C" __attribute__((visibility("default"))) int missing_##name() asm(#name); \
  int missing_##name() { return fail(ncclInvalidUsage, "simnccl: " #name " is not pretended"); }
MISSING(ncclAlltoAll)
MISSING(ncclCommGrow)
MISSING(ncclCommInitAll)
MISSING(ncclCommResume)
MISSING(ncclCommShrink)
MISSING(ncclCommSuspend)
MISSING(ncclCommWindowRegister)
MISSING(ncclGather)
MISSING(ncclRecv)
MISSING(ncclRedOpCreatePreMulSum)
MISSING(ncclScatter)
MISSING(ncclSend)

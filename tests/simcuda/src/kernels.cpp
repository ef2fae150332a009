// CUDA's operators, computed by the CPU's kernels on the pretended device's memory.
//
// Every operator that has a kernel for the CUDA key gets a boxed one in its place: device tensors become CPU
// tensors over the same memory, PyTorch's CPU kernel runs, and new results are put into memory of the CUDA
// caching allocator. What only moves metadata or bytes (views, empty, copies between host and device,
// .item()) stays PyTorch's own CUDA code.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/Resize.h>
#include <ATen/native/Copy.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "device.h"

namespace {

using c10::Stack;
using c10::IValue;

// ---- counting

std::mutex counting;
std::map<std::string, int64_t>& counts() {
  static auto* all = new std::map<std::string, int64_t>;
  return *all;
}

void launched(const std::string& name, const std::vector<at::Tensor>& touched) {
  uint64_t bytes = 0;
  for (auto& tensor : touched) bytes += tensor.defined() ? tensor.nbytes() : 0;
  {
    std::lock_guard<std::mutex> lock(counting);
    counts()[name]++;
  }
  sim_kernel(c10::cuda::getCurrentCUDAStream().stream(), name.c_str(), bytes);
}

// ---- device memory as CPU tensors

at::Tensor over_the_same_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  at::Tensor cpu = at::from_blob(
      const_cast<void*>(tensor.storage().data()), tensor.sizes(), tensor.strides(), tensor.storage_offset(), [](void*) {}, options,
      at::Device(at::kCPU));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) cpu.unsafeGetTensorImpl()->set_wrapped_number(true);
  return cpu;
}

at::Tensor in_device_memory(const at::Tensor& cpu, at::Device device) {
  at::Tensor result = at::empty_strided(cpu.sizes(), cpu.strides(), cpu.options().device(device));
  over_the_same_memory(result).copy_(cpu);
  return result;
}

bool is_low(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

// ---- one call

struct Call {
  const c10::OperatorHandle& op;
  const c10::FunctionSchema& schema;
  std::vector<IValue> arguments;  // as they came
  std::vector<at::Tensor> tensors;
  at::Device device{at::kCUDA, 0};
  bool raise_to_float = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_back;  // the device's alias, the float32 stand-in

  explicit Call(const c10::OperatorHandle& op) : op(op), schema(op.schema()) {}

  template <class F>
  static IValue map_tensors(const IValue& value, F&& f) {
    if (value.isTensor()) return f(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(f(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector())
        list.push_back(tensor.has_value() && tensor->defined() ? std::optional<at::Tensor>(f(*tensor)) : std::nullopt);
      return list;
    }
    return value;
  }

  // One that takes lists of tensors, each of which may lie on another device.
  bool is_foreach() const { return schema.name().rfind("aten::_foreach", 0) == 0; }

  void check_devices() {
    static const std::set<std::string> free = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::where",
                                               "aten::fill_", "aten::masked_fill_", "aten::nll_loss_forward"};
    bool host_scalars = op.hasTag(at::Tag::pointwise) || free.count(schema.name());
    std::optional<at::Device> common;
    for (size_t i = 0; i < arguments.size(); i++)
      map_tensors(arguments[i], [&](const at::Tensor& tensor) {
        if (tensor.defined()) {
          tensors.push_back(tensor);
          bool may_be_host = (host_scalars && tensor.dim() == 0) || schema.name().find("index") != std::string::npos;
          if (is_foreach() && tensor.is_cuda() && !common) common = tensor.device();  // the others may lie elsewhere
          if (!(tensor.device().is_cpu() && may_be_host) && !is_foreach())
            c10::impl::check_and_update_common_device(common, tensor, schema.name().c_str(), schema.arguments()[i].name().c_str());
        }
        return tensor;
      });
    if (common) device = *common;
    else
      for (auto& value : arguments)
        if (value.isDevice() && value.toDevice().is_cuda()) device = value.toDevice();
  }

  static uint64_t next_seed(const at::Device& device, const std::optional<at::Generator>& given) {
    at::Generator generator = given && given->defined() ? *given : at::globalContext().defaultGenerator(device);
    TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '", generator.device(), "'");
    std::lock_guard<std::mutex> lock(generator.mutex());
    uint64_t offset = generator.get_offset();
    generator.set_offset(offset + 4);
    return generator.current_seed() * 0x9E3779B97F4A7C15ull ^ (offset + 1) * 0xBF58476D1CE4E5B9ull;
  }

  IValue host_argument(size_t i) {
    const c10::Argument& about = schema.arguments()[i];
    const IValue& value = arguments[i];
    bool generator = about.type()->str().find("Generator") != std::string::npos;
    if (generator) {
      std::optional<at::Generator> given;
      if (!value.isNone()) given = value.toGenerator();
      return at::make_generator<at::CPUGeneratorImpl>(next_seed(device, given));
    }
    if (value.isDevice()) return at::Device(at::kCPU);
    if (about.name() == "half_to_float") return false;
    bool writes = about.alias_info() && about.alias_info()->isWrite();
    bool out = about.is_out();
    return map_tensors(value, [&](const at::Tensor& tensor) -> at::Tensor {
      if (!tensor.defined()) return tensor;
      at::Tensor cpu = over_the_same_memory(tensor);
      if (out && value.isTensor()) return at::empty({0}, cpu.options());  // those in lists have their sizes
      if (raise_to_float && is_low(cpu.scalar_type())) {
        at::Tensor raised = cpu.to(at::kFloat);
        if (writes) written_back.emplace_back(cpu, raised);
        return raised;
      }
      return cpu;
    });
  }

  void compute(Stack* stack) {
    written_back.clear();
    stack->clear();
    for (size_t i = 0; i < arguments.size(); i++) stack->push_back(host_argument(i));
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }

  at::ScalarType low_type() const {
    for (auto& tensor : tensors)
      if (is_low(tensor.scalar_type())) return tensor.scalar_type();
    return at::kFloat;
  }

  IValue device_result(size_t i, const IValue& value) {
    const c10::Argument& about = schema.returns()[i];
    if (about.alias_info() && about.alias_info()->isWrite()) {
      for (size_t j = 0; j < arguments.size(); j++) {
        const c10::Argument& argument = schema.arguments()[j];
        if (!argument.alias_info() || argument.alias_info()->beforeSets() != about.alias_info()->beforeSets()) continue;
        if (argument.is_out()) {
          at::Tensor to = arguments[j].toTensor(), from = value.toTensor();
          if (to.sizes() != from.sizes()) at::native::resize_output(to, from.sizes());
          over_the_same_memory(to).copy_(from);
        }
        return arguments[j];
      }
    }
    size_t number = 0;
    return map_tensors(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
      at::Tensor result = raise_to_float && tensor.scalar_type() == at::kFloat ? tensor.to(low_type()) : tensor;
      bool own = is_foreach() && number < tensors.size() && tensors[number].is_cuda();
      return in_device_memory(result, own ? tensors[number++].device() : device);
    });
  }
};

// Whether it makes a tensor of its own: what writes into tensors that are there needs no memory.
bool asks_for_memory(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns())
    if (!result.alias_info()) return true;
  return false;
}

bool host_waits(const Call& call) {
  const std::string& name = call.schema.name();
  static const std::set<std::string> always = {
      "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
      "aten::equal", "aten::multinomial_checked", "aten::bincount", "aten::is_nonzero", "aten::_ctc_loss"};
  if (always.count(name)) return true;
  if (name == "aten::repeat_interleave") return true;
  if (name == "aten::nanmedian" && call.schema.overload_name().empty()) return true;  // the one of all elements
  if (name.rfind("aten::index", 0) == 0 || name == "aten::_index_put_impl_")
    for (auto& value : call.arguments)
      if (value.isOptionalTensorList())
        for (const auto& index : value.toOptionalTensorVector())
          if (index && index->defined() && (index->scalar_type() == at::kBool || index->is_cpu())) return true;
  return false;
}

void on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Call call(op);
  size_t count = call.schema.arguments().size();
  call.arguments.assign(stack->end() - count, stack->end());
  stack->erase(stack->end() - count, stack->end());
  call.check_devices();
  c10::cuda::OptionalCUDAGuard guard(call.device);
  const std::string& name = call.schema.name();
  if (asks_for_memory(call.schema))
    TORCH_CHECK_WITH(OutOfMemoryError, !sim_memory_runs_out(), "CUDA out of memory. Pretended, in ", name);
  // float16 in, float32 out: a form of softmax that only CUDA has.
  bool widens = false;
  for (size_t i = 0; i < count; i++)
    if (call.schema.arguments()[i].name() == "half_to_float" && call.arguments[i].toBool()) widens = true;
  if (widens) call.arguments[0] = call.arguments[0].toTensor().to(at::kFloat);
  std::optional<at::Tensor> default_state;
  if (name == "aten::native_dropout") {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    default_state = generator.get_state();
    generator.set_current_seed(Call::next_seed(call.device, std::nullopt));
  }
  Stack own;
  try {
    call.compute(&own);
  } catch (const c10::Error& error) {
    std::string what = error.what();
    if (what.find("not implemented for 'Half'") == std::string::npos && what.find("not implemented for 'BFloat16'") == std::string::npos &&
        what.find("Half") == std::string::npos)
      throw;
    call.raise_to_float = true;
    call.compute(&own);
  }
  for (auto& [to, from] : call.written_back) to.copy_(from);
  if (default_state) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_state(*default_state);
  }
  launched(name, call.tensors);
  if (double error = sim_get("broken"); error) C10_CUDA_CHECK(cudaError_t(int(error)));
  for (size_t i = 0; i < own.size(); i++) stack->push_back(call.device_result(i, own[i]));
  if (host_waits(call)) sim_operator_waits(c10::cuda::getCurrentCUDAStream().stream(), name.c_str());
}

// ---- the few that need more

at::Tensor& copy(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  if (self.is_cuda() && src.is_cuda()) {
    c10::cuda::CUDAGuard guard(self.device());
    over_the_same_memory(self).copy_(over_the_same_memory(src));
    launched("aten::copy_", {self, src});
    return self;
  }
  {
    std::lock_guard<std::mutex> lock(counting);
    counts()[self.is_cuda() ? "copy to the device" : "copy to the host"]++;
  }
  return at::native::copy_(self, src, non_blocking);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> cudnn_batch_norm(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& mean,
    const std::optional<at::Tensor>& var, bool training, double momentum, double epsilon) {
  auto [out, save_mean, save_var] = at::native_batch_norm(input, weight, bias, mean, var, training, momentum, epsilon);
  return {out, save_mean, save_var, at::empty({0}, input.options().dtype(at::kByte))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_batch_norm_backward(
    const at::Tensor& input, const at::Tensor& grad, const at::Tensor& weight, const std::optional<at::Tensor>& mean,
    const std::optional<at::Tensor>& var, const std::optional<at::Tensor>& save_mean, const std::optional<at::Tensor>& save_var,
    double epsilon, const at::Tensor&) {
  return at::native_batch_norm_backward(grad, input, weight, mean, var, save_mean, save_var, true, epsilon, {true, true, true});
}

template <bool kLog>
at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim, at::ScalarType input_type) {
  at::Tensor g = over_the_same_memory(grad), o = over_the_same_memory(output);
  if (g.scalar_type() != o.scalar_type()) { g = g.to(at::kFloat); o = o.to(at::kFloat); }
  at::Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = kLog ? at::_log_softmax_backward_data(g, o, dim, g.scalar_type()) : at::_softmax_backward_data(g, o, dim, g.scalar_type());
  }
  launched(kLog ? "aten::_log_softmax_backward_data" : "aten::_softmax_backward_data", {grad, output});
  return in_device_memory(result.to(input_type), grad.device());
}

bool stays(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  static const std::set<std::string> by_name = {
      "aten::_local_scalar_dense", "aten::is_pinned", "aten::_pin_memory", "aten::record_stream", "aten::resize_",
      "aten::empty", "aten::empty_strided", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"};
  if (by_name.count(name) || name.rfind("aten::set_", 0) == 0 || name.rfind("aten::_cslt", 0) == 0) return true;
  for (const auto& result : op.schema().returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;  // a view
  return false;
}

int register_all() {
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  static Silent silent;
  c10::WarningUtils::WarningHandlerGuard no_warnings(&silent);
  auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  static const std::set<std::string> own = {"aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward",
                                            "aten::_log_softmax_backward_data", "aten::_softmax_backward_data"};
  static const std::set<std::string> also = {"aten::convolution", "aten::convolution_backward"};
  int registered = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op || op->schema().name().rfind("aten::", 0) != 0) continue;
    bool ours = also.count(name.name) && name.overload_name.empty();
    if (!ours && !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    if (stays(*op) || (own.count(name.name) && name.overload_name.empty())) continue;
    std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
    registered++;
  }
  library->impl("copy_", TORCH_FN(copy));
  library->impl("cudnn_batch_norm", TORCH_FN(cudnn_batch_norm));
  library->impl("cudnn_batch_norm_backward", TORCH_FN(cudnn_batch_norm_backward));
  library->impl("_log_softmax_backward_data", TORCH_FN(softmax_backward<true>));
  library->impl("_softmax_backward_data", TORCH_FN(softmax_backward<false>));
  // Attention as matrix products and a softmax: the fused forms have no kernels on a CPU.
  at::globalContext().setSDPUseFlash(false);
  at::globalContext().setSDPUseMemEfficient(false);
  at::globalContext().setSDPUseCuDNN(false);
  return registered;
}

int registered = register_all();

}  // namespace

extern "C" {

int sim_registered() { return registered; }

// "name count\n" for every operator since the last call; the caller's buffer is filled as far as it goes.
int64_t sim_take_counts(char* buffer, int64_t room) {
  std::lock_guard<std::mutex> lock(counting);
  std::string text;
  for (auto& [name, count] : counts()) text += name + "\t" + std::to_string(count) + "\n";
  counts().clear();
  int64_t length = std::min<int64_t>(text.size(), room - 1);
  memcpy(buffer, text.data(), length);
  buffer[length] = 0;
  return length;
}
}

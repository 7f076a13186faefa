// Activation checkpointing: only a layer's input is kept; the backward pass runs the layer again. Included by models'
// .cc only.
#pragma once
#include <ATen/core/ivalue.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <functional>
#include <memory>

namespace nibble::trainer {

struct RecomputedLayer : torch::autograd::Function<RecomputedLayer> {
  using Body = std::function<torch::Tensor(torch::Tensor)>;
  // Lets the graph own a body, which is freed with the graph, whether or not the graph ran backward.
  struct Holder : torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<Body> b) : body(std::move(b)) {}
    const std::shared_ptr<Body> body;
  };
  // `needs_grad` is a tensor that needs a gradient. With it, autograd makes a node even if `h` needs none (the first
  // layer).
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& h,
                               const torch::Tensor& needs_grad, std::shared_ptr<Body> body) {
    (void)needs_grad;
    ctx->save_for_backward({h});
    ctx->saved_data["body"] = torch::IValue::make_capsule(c10::make_intrusive<Holder>(body));
    const torch::NoGradGuard no_grad;
    return (*body)(h);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const c10::intrusive_ptr<torch::CustomClassHolder> holder = ctx->saved_data["body"].toCapsule();
    const Body& body = *static_cast<const Holder&>(*holder).body;
    torch::Tensor input = ctx->get_saved_variables()[0].detach();
    input.requires_grad_(true);
    torch::Tensor output;
    {
      const torch::AutoGradMode grad_mode(true);
      output = body(input);
    }
    torch::autograd::backward({output}, {grads[0]});
    return {input.grad(), torch::Tensor(), torch::Tensor()};
  }
};

inline torch::Tensor RunRecomputed(torch::Tensor h, RecomputedLayer::Body body) {
  return RecomputedLayer::apply(h, torch::empty({0}, torch::requires_grad()),
                                std::make_shared<RecomputedLayer::Body>(std::move(body)));
}

}  // namespace nibble::trainer
